"""Recorded history played again: checked against the tables, moved between databases, sent to listeners."""
