"""``bso demo``: a training script, recurrences of it as ``bso recur`` drives them, and what they have come to."""
