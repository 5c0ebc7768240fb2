"""Commands of `submit`."""
