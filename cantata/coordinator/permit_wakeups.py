"""Sends the steps whose model calls were called from the queues of the shared limits."""

from __future__ import annotations

from collections.abc import Iterable

from cantata.state.ledger.ledger import Ledger
from cantata.state.ledger.records import Ready
from cantata.state.limits.limiter import MAX_CALLED, Limiter

MAX_ROUNDS = 100  # in one go; the next sweep goes on


def sweep(ledger: Ledger, limiter: Limiter, waiting: Iterable[str], left: Iterable[str]) -> list[tuple[str, Ready]]:
    """Call those for whom there is room, and take out those that wait no more (`run|step`); answers what to send.

    `waiting` are steps that the ledger has as waiting: those that no queue has any more are to ask again.
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
    """Have steps that were called ask again; answers what to send. One that is over gives its permit to the next."""
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
