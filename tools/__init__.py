"""What developing and demonstrating the project needs, and its users do not."""
