"""A Celery application as a user has it, for a worker of the user's. Its tasks write to the journal as the suite's tools do.

It knows of Cantata only the headers of its tasks, and the ids that these are given.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("faults", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


@app.task(bind=True, name="faults.work")
def work(self: Any, journal: str, value: int = 0, seconds: float = 0.0) -> int:
    """One more than the value, after some time."""
    _note(self.request, journal, "start")
    time.sleep(seconds)
    _note(self.request, journal, "finish")
    return value + 1


def _note(request: Any, journal: str, what: str) -> None:
    """Append a line."""
    attempt = int(request.id.split("-")[-2])
    where = {"run_id": request.cantata_run, "step_id": request.cantata_step, "attempt": attempt}
    line = json.dumps({"what": what, "at": time.time(), "pid": os.getpid(), **where}) + "\n"
    with Path(journal).open("ab", buffering=0) as file:
        file.write(line.encode())
