"""``bso replay``: recorded history checked, moved, and played again."""
