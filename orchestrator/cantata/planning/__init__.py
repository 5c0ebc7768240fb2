"""Pure functions that turn definitions and requests into graphs and canvases."""
