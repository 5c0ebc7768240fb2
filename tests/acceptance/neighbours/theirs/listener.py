"""Writes which signals a worker sends, and its state when it is ready: `celery worker --include listener`, to the file HEARD."""

import json
import os
from typing import Any

from celery import signals
from snapshot import snapshot

NAMES = (
    "task_received", "task_prerun", "task_postrun", "task_success", "task_failure", "task_retry", "task_revoked", "task_unknown",
    "task_rejected", "task_internal_error", "worker_ready", "worker_process_init", "worker_shutting_down",
)  # fmt: skip


def listen(name: str) -> None:
    """Write each sending of a signal as one line."""

    def heard(sender: Any = None, request: Any = None, **more: Any) -> None:
        task = getattr(request, "name", None) or more.get("name") or getattr(sender, "name", "")
        line = {"signal": name, "task": task if isinstance(task, str) else "", "arguments": sorted(more)}
        if name == "worker_ready":
            line = {**line, "task": "", "snapshot": snapshot(sender.app)}
        with open(os.environ["HEARD"], "a") as file:
            file.write(json.dumps(line) + "\n")

    getattr(signals, name).connect(heard, weak=False)


for each in NAMES:
    listen(each)
