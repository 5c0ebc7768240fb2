"""Measures Cantata against plain Celery canvases, in the same run on the same machine. `./run bench`."""
