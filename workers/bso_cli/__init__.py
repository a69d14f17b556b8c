"""The ``bso`` command: the one place that wires all parts together, each loaded when a command needs it."""
