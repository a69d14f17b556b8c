"""Pages of a large fleet, measured in a browser."""
