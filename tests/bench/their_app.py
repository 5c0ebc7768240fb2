"""An application that a team has before Cantata: Redis as its broker and result backend, and Celery's own settings."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("theirs", broker=os.environ["THEIR_REDIS"], backend=os.environ["THEIR_REDIS"])


@app.task(name="noop")
def noop() -> int:
    """Do nothing."""
    return 1
