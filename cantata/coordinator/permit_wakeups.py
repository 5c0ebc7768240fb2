"""Wake-ups of steps that wait for rate limits, once the limits have room."""

from __future__ import annotations

from collections.abc import Iterable

from cantata.state.ledger.ledger import Ledger
from cantata.state.ledger.records import Ready
from cantata.state.limits.limiter import MAX_CALLED, Limiter

MAX_ROUNDS = 100  # in one call; the next sweep goes on


def sweep(ledger: Ledger, limiter: Limiter, waiting: Iterable[str], left: Iterable[str]) -> list[tuple[str, Ready]]:
    """Wake steps (`run|step`) for which the limits have room, forget those that `left`, and return the steps to send.

    Steps in `waiting`, which the ledger has as waiting, that are in no queue of the limits are woken too, to request a permit again.
    """
    sends: list[tuple[str, Ready]] = []
    if gone := list(left):
        sends += wake(ledger, limiter, limiter.forget(gone))
    tickets = list(waiting)
    for _ in range(MAX_ROUNDS):
        called = limiter.sweep(tickets[:MAX_CALLED])
        sends += wake(ledger, limiter, called)
        tickets = tickets[MAX_CALLED:]
        if not tickets and len(called) < MAX_CALLED:
            break
    return sends


def wake(ledger: Ledger, limiter: Limiter, called: Iterable[str]) -> list[tuple[str, Ready]]:
    """Start the next attempt of called steps; return the steps to send. The permit of a step that is over goes to the next in its queue."""
    sends: list[tuple[str, Ready]] = []
    tickets = list(called)
    for _ in range(MAX_ROUNDS):
        answers = list(zip(tickets, ledger.steps.wake_all(tickets), strict=True))
        sends += [(ticket.partition("|")[0], step) for ticket, (_, ready) in answers for step in ready]
        over = [ticket for ticket, (word, _) in answers if word == "over"]
        if not over:
            break
        tickets = limiter.forget(over)
    return sends
