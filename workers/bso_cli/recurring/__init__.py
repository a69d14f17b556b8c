"""What ``bso recur`` is made of: its launches and their trials, the folder of a run, the summary."""
