"""A Celery project as a team may have it; nothing in it knows of Cantata."""
