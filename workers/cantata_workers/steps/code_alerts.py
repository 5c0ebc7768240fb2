"""The alert that workers serve several versions of a module, looked for when a run starts."""

from __future__ import annotations

import time

import structlog

from cantata.engine.fleet import code_versions, registry
from cantata.errors import CantataError
from cantata.features.webhooks.webhooks import raise_alerts
from cantata.ledger.redis.connection import RedisFailure
from cantata.ledger.runs import alert_counts
from cantata_workers.process.step_context import StepContext

EVERY_S = 10.0  # between two looks of a process for the same configuration

log = structlog.get_logger(__name__)
_looked_at: dict[str, float] = {}


def check_code(context: StepContext) -> None:
    """Raise the alerts `mixed_code` of a configuration, one of whose runs starts now, if the fleet has been mixed for their time."""
    alerts = [alert for alert in context.definitions.alerts.values() if alert.on == "mixed_code"]
    digest, ledger = context.begun.definitions, context.process.ledger
    if not alerts or time.monotonic() - _looked_at.get(digest, -EVERY_S) < EVERY_S:
        return
    _looked_at[digest] = time.monotonic()
    try:
        mixed = code_versions.describe_served({worker.name: worker.code for worker in registry.workers(ledger.redis)})
        if mixed and alert_counts.lasts(ledger, f"{digest[:16]}:mixed_code", within_s=min(alert.within_s for alert in alerts)):
            raise_alerts(
                ledger, context.definitions, ledger.runs.definitions(context.begun.run_id, digest), "mixed_code",
                key=f"{digest}\n{mixed}", message="workers serve different versions of a module", data={"code": mixed},
            )  # fmt: skip
    except (CantataError, RedisFailure) as error:  # the run goes on
        log.warning("alert_failed", alert="mixed_code", error=str(error))
