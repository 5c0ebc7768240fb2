"""From canvases to Celery messages."""
