"""Plain Celery on the same Redis: prefork, acks_late, results, no ledger. What a team has before Cantata."""

from __future__ import annotations

import os

from celery import Celery

from cantata_workers.models.llm import load
from tests.bench.bare import MODEL

app = Celery("plain", broker=os.environ["PLAIN_BROKER"], backend=os.environ["PLAIN_BROKER"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task(name="noop", acks_late=True)
def noop(*_: object) -> int:
    """Do nothing."""
    return 1


@app.task(name="ask", acks_late=True)
def ask(text: str) -> str:
    """Ask a model."""
    reply = load().completion(model=MODEL, messages=[{"role": "user", "content": text}], max_retries=0)
    return str(reply.choices[0].message.content)
