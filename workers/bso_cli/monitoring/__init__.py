"""What ``bso monitor`` is made of: readings of all meters, tables of them, and a command that is measured."""
