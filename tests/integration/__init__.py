"""With real servers and processes."""
