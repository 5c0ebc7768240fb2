"""One module for each command of `submit`."""
