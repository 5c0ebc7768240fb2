"""`heartbeat()`: a task of the user's says that it is alive. It runs in the user's worker, and needs no Redis of ours."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import structlog

from cantata.engine.publisher import HEARTBEAT

log = structlog.get_logger(__name__)


def heartbeat() -> None:
    """Say that the Celery task that calls it is alive, for a step whose tool has `heartbeat_s`; elsewhere do nothing.

    Call it as often as you like: a message goes to your broker three times in `heartbeat_s` at most. After `heartbeat_s` without one
    the task's worker is taken for lost, and the step is executed again, or waits for a person if its tool is `at_most_once`. Before the
    first call, and for tools without `heartbeat_s`, only `timeout_s` counts. An error of the broker costs the task nothing.
    """
    celery = sys.modules.get("celery")
    task: Any = celery.current_task if celery else None
    if not task:
        return
    asked = cast("Mapping[str, Any] | None", getattr(task.request, "cantata_heartbeat", None))
    now = time.monotonic()
    if not asked or now < getattr(task.request, "cantata_next_heartbeat", 0.0):
        return
    task.request.cantata_next_heartbeat = now + float(asked["every_s"])
    try:
        options = {"serializer": "json", "ignore_result": True, "retry": False, "add_to_parent": False}
        task.app.send_task(HEARTBEAT, args=asked["args"], **asked["to"], **options)
    except Exception as error:  # noqa: BLE001  # whatever the user's broker raises: the next call tries again
        log.warning("heartbeat_failed", error=str(error))
