"""Wake-ups of steps that wait for rate limits, once the limits have room."""

from __future__ import annotations

from collections.abc import Iterable

from cantata.engine.isolation import Isolation, Item
from cantata.engine.limits.limiter import MAX_CALLED, Limiter
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ready
from cantata.ledger.redis.keys import shard_of

MAX_ROUNDS = 100  # in one call; the next sweep goes on


def sweep(
    ledger: Ledger, limiter: Limiter, waiting: Iterable[str], left: Iterable[str], isolation: Isolation | None = None
) -> list[tuple[str, Ready]]:
    """Wake steps (`run|step`) for which the limits have room, forget those that `left`, and return the steps to send.

    Steps in `waiting`, which the ledger has as waiting, that are in no queue of the limits are woken too, to request a permit again.
    """
    isolation = isolation or Isolation(ledger)
    sends: list[tuple[str, Ready]] = []
    if gone := list(left):
        sends += wake(ledger, limiter, limiter.forget(gone), isolation)
    tickets = list(waiting)
    for _ in range(MAX_ROUNDS):
        called = limiter.sweep(tickets[:MAX_CALLED], lambda name, error: isolation.failed(Item("permits", name), error))
        sends += wake(ledger, limiter, called, isolation)
        tickets = tickets[MAX_CALLED:]
        if not tickets and not called:
            break
    return sends


def wake(
    ledger: Ledger, limiter: Limiter, called: Iterable[str], isolation: Isolation | None = None
) -> list[tuple[str, Ready]]:
    """Start the next attempt of called steps; return the steps to send. The permit of a step that is over goes to the next in its queue.

    A step whose record cannot be read costs nobody else the permit: it is logged.
    """
    sends: list[tuple[str, Ready]] = []
    isolation, tickets = isolation or Isolation(ledger), list(called)
    for _ in range(MAX_ROUNDS):
        over: list[str] = []
        for ticket, woken in zip(tickets, ledger.steps.wake_all(tickets), strict=True):
            if woken.error is not None:
                isolation.failed(Item("permits", ticket, shard_of(ticket.partition("|")[0])), woken.error)
            sends += [(ticket.partition("|")[0], step) for step in woken.sends]
            over += [ticket] if woken.result == "over" else []
        if not over:
            break
        tickets = limiter.forget(over)
    return sends
