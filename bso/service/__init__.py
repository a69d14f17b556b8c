"""Use cases: a batch of commands in one unit of work."""
