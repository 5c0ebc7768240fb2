"""Its tasks. They write to a journal what they really did."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject
from pydantic import BaseModel

import cantata


def note(task: Any, what: str) -> None:
    """Write a line to the journal."""
    line = {
        "what": what,
        "name": task.request.args or task.request.kwargs.get("mark"),
        "id": task.request.id,
        "pid": os.getpid(),
    }
    with Path(os.environ["SHOP_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps(line) + "\n")


def hold(task: Any, mark: str, file: str) -> str:
    """Wait for a file."""
    note(task, "start")
    while not Path(file).exists():
        time.sleep(0.02)
    note(task, "finish")
    return mark


@shared_task(bind=True)
def add(self: Any, a: int, b: int = 1, mark: str = "") -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    note(self, "start")
    return a + b


@shared_task(bind=True)
def slow(self: Any, mark: str, seconds: float, value: Any = None) -> Any:
    """Take some time."""
    note(self, "start")
    time.sleep(seconds)
    note(self, "finish")
    return value


@shared_task(bind=True)
def held(self: Any, mark: str, file: str) -> str:
    """Wait for a file."""
    return hold(self, mark, file)


@shared_task(bind=True, acks_late=True)
def held_late(self: Any, mark: str, file: str) -> str:
    """Do the same, and be acknowledged late."""
    return hold(self, mark, file)


@shared_task(bind=True)
def beating(self: Any, mark: str, file: str, beats: bool = True) -> str:
    """Wait for a file, and say all the while that this task is alive; or once only, and then stand still."""
    note(self, "start")
    cantata.heartbeat()
    while not Path(file).exists():
        time.sleep(0.02)
        if beats:
            cantata.heartbeat()
    note(self, "finish")
    return mark


@shared_task(bind=True)
def pay(self: Any, mark: str = "") -> dict[str, Any]:
    """Tell how the message came."""
    note(self, "start")
    return {"queue": self.request.delivery_info["routing_key"], "headers": self.request.headers}


@shared_task
def fail(message: str) -> None:
    """Raise an error."""
    raise ValueError(message)


@shared_task(bind=True, max_retries=3)
def shy(self: Any, times: int) -> int:
    """Retry itself a few times."""
    if self.request.retries < times:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@shared_task(bind=True)
def deputise(self: Any, a: int) -> Any:
    """Be replaced by another task."""
    raise self.replace(add.si(a, 10))


@shared_task
def odd(what: str) -> Any:
    """Give back what may not be JSON."""
    values = {"object": object(), "date": datetime.date(2026, 11, 23), "set": {1}, "nan": float("nan"), "none": None}
    return "x" * 20_000_000 if what == "large" else values[what]


@shared_task(ignore_result=True)
def quiet(a: int) -> int:
    """Keep no result."""
    return a + 1


@shared_task(acks_late=True)
def late(mark: str) -> str:
    """Be acknowledged late."""
    return mark


@shared_task(bind=True, autoretry_for=(ConnectionError,), default_retry_delay=0, max_retries=2)
def unsteady(self: Any, mark: str, failures: int) -> int:
    """Fail a few times with an error for which Celery retries it."""
    note(self, "start")
    if self.request.retries < failures:
        raise ConnectionError("no bank")
    return int(self.request.retries)


@shared_task(bind=True, rate_limit="1/m")
def seldom(self: Any, mark: str) -> str:
    """Be executed once a minute."""
    note(self, "start")
    return mark


@shared_task(bind=True, expires=0.1)
def perishable(self: Any, mark: str) -> str:
    """Be of use only at once."""
    note(self, "start")
    return mark


@shared_task(time_limit=1)
def endless() -> None:
    """Be killed by Celery."""
    time.sleep(60)


@shared_task(soft_time_limit=1)
def too_long() -> None:
    """Be interrupted by Celery."""
    time.sleep(60)


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def kept(self: Any, mark: str, file: str) -> str:
    """Wait for a file, and be delivered again if this process dies."""
    note(self, "start")
    while not Path(file).exists():
        time.sleep(0.02)
    return mark


@shared_task(bind=True, acks_late=True)
def evasive(self: Any, mark: str, how: str) -> str:
    """Tell Celery not to report an end; or do so the second time it is delivered."""
    note(self, "start")
    if how == "store":
        self.update_state(state="SUCCESS", meta="stored")
    if how == "requeue" and self.request.delivery_info["redelivered"]:
        return "delivered again"
    raise Ignore if how in ("ignore", "store") else Reject("no", requeue=how == "requeue")


class Renaming(Task):  # type: ignore[type-arg]  # in the stubs only
    """Tasks that choose their ids themselves."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send it under another id."""
        return super().apply_async(*args, **{**options, "task_id": "mine"})


@shared_task(base=Renaming)
def renamed() -> None:
    """Be sent under another id."""


class Order(BaseModel):
    """An order."""

    item: str
    count: int = 1


@shared_task(pydantic=True)
def order(order: Order) -> Order:
    """Place an order."""
    return order
