"""Steps that call tasks of the user's own Celery application, which the user's workers execute."""
