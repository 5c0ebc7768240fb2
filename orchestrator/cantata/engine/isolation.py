"""Isolation of what a sweep does: an error of one item costs that item, and neither those beside it nor the sweep.

An outage is no item's fault: while Redis or the broker is away, errors go on to the caller, and no item is blamed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from cantata.errors import CantataError, UnavailableError
from cantata.ledger.ledger import Ledger
from cantata.ledger.parked import MAX_TRIES
from cantata.ledger.redis import outages
from cantata.ledger.redis.connection import RedisFailure
from cantata.ledger.redis.redis_errors import is_outage
from cantata.operation import metrics

log = structlog.get_logger(__name__)

LOGGED_AGAIN_S = 600.0  # after which the same error of the same item is logged again
MAX_REMEMBERED = 1000
MAX_LOGGED = 500  # characters of an error

T = TypeVar("T")

_logged_at: dict[tuple[str, ...], float] = {}


@dataclass(frozen=True, slots=True)
class Item:
    """A thing that a duty of the sweep handles."""

    duty: str
    name: str
    """Its name in the list of its duty: a run, a run and a step (`run|step`), a schedule."""
    shard: int | None = None
    """The shard in which it is parked after three failures; None if it is not tried again."""


def are_outages(error: BaseException) -> bool:
    """Return whether an error says that a service is away, and nothing about what was done."""
    kombu = sys.modules.get("kombu.exceptions")  # a process that sends no message has none
    of_broker = (kombu.OperationalError,) if kombu else ()
    return isinstance(error, (UnavailableError, ConnectionError, TimeoutError, *of_broker)) or is_outage(error)


class Isolation:
    """Keeps errors of items apart: logs each once, counts it, and parks an item that fails again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._parked = ledger.parked

    @contextmanager
    def of(self, item: Item) -> Iterator[None]:
        """Keep an error of the block from what follows it. Raises only what tells that a service is away, or that the process ends."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a library's panic is no Exception
            if are_outages(error):
                raise
            self.failed(item, error)

    def together(self, items: Sequence[T], do: Callable[[Sequence[T]], object], item_of: Callable[[T], Item]) -> None:
        """Do something about all items at once; if that fails, about each of them alone, so that it costs only those that cause it.

        `do` may be repeated for items for which it had succeeded.
        """
        if not items:
            return
        try:
            do(items)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as above
            if are_outages(error):
                raise
            for each in items:
                with self.of(item_of(each)):
                    do([each])

    def failed(self, item: Item, error: BaseException | str, *, tries: int = 0) -> None:
        """Log, count and record an error of an item, which is tried again later; of an outage that its call met, only log it.

        `tries` is the number of its failures, if this one is recorded already.
        """
        if isinstance(error, BaseException) and are_outages(error):
            outages.warn(log, "sweep_failed", error, duty=item.duty)
            return
        metrics.record_sweep_error(item.duty)
        log_once("sweep_item_failed", error, duty=item.duty, item=item.name)
        if item.shard is not None and not tries:
            try:
                tries = self._parked.record_failure(item.shard, item.duty, item.name, _text(error))
            except (CantataError, RedisFailure) as failure:
                outages.warn(log, "sweep_failed", failure, duty=item.duty)
        if tries >= MAX_TRIES:
            log.error(
                "sweep_item_parked", duty=item.duty, item=item.name, error=_text(error), note="see `submit parked list`"
            )


def _text(error: BaseException | str) -> str:
    return (error if isinstance(error, str) else f"{type(error).__name__}: {error}")[:MAX_LOGGED]


def log_once(event: str, error: BaseException | str, **fields: str) -> None:
    """Log an unexpected error, with its traceback unless Redis replied it; nothing if this process did so a short time ago."""
    text = _text(error)
    now, key = time.monotonic(), (event, *fields.values(), text[:200])
    if now - _logged_at.get(key, -LOGGED_AGAIN_S) < LOGGED_AGAIN_S:
        return
    if len(_logged_at) >= MAX_REMEMBERED:
        _logged_at.clear()
    _logged_at[key] = now
    log.error(event, error=text, exc_info=None if isinstance(error, str | RedisFailure) else error, **fields)
