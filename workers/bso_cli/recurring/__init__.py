"""What ``bso recur`` is made of: when a recurrence is due, its launches, the folder of a run, the summary."""
