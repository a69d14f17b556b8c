"""``bso simulate``: policies on measured traces."""
