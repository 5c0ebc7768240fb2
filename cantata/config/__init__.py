"""Documents people write, read into requests and definitions."""
