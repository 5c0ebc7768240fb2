"""All duties of a sweep: those of the engine, and those of features."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.engine import duties
from cantata.engine.dispatch.celery_app import App
from cantata.engine.duties import Duty
from cantata.features.schedules import firing
from cantata.features.webhooks import webhooks
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS

DUTIES: Sequence[Duty] = (*duties.FIRST, webhooks.DUTY, firing.DUTY, *duties.LAST)
"""In the order in which they are done: what waits for a person least, and is known to be due, first."""


def sweep_once(app: App, ledger: Ledger, shards: Sequence[int] = range(SHARDS)) -> bool:
    """Sweep some shards and do all duties; return whether all of them were done, for whichever items could be. Raises UnavailableError."""
    return duties.sweep_once(app, ledger, shards, DUTIES)
