"""The peer: the batch size server of Zeus (NSDI '23), asked over its own wire."""
