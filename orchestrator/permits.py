"""Has calls that wait for a permit come when it is their turn, and keeps the line free of those that wait no more."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.state.ledger import Ledger
from orchestrator.state.limits import Limiter, Sooner
from orchestrator.state.records import Ready

MOST_ROUNDS = 100  # of waking in one go, where those that are woken are over and give up their places; the next sweep goes on


def look(ledger: Ledger, limiter: Limiter, waiting: Iterable[str], left: Iterable[str]) -> list[tuple[str, Ready]]:
    """Look for calls that wait (`run|step`), and take those out of the lines that wait no more; answers what to send.

    However many there are, this takes a few round trips to Redis, and it writes no event.
    """
    tickets = list(waiting)
    waits = dict(zip(tickets, limiter.poll(tickets), strict=True))
    ledger.look_in({ticket: seconds for ticket, seconds in waits.items() if seconds > 0})
    sends = _wake(ledger, limiter, [ticket for ticket, seconds in waits.items() if seconds <= 0])
    if gone := list(left):
        sends += hasten(ledger, limiter, limiter.forget(gone))
    return sends


def hasten(ledger: Ledger, limiter: Limiter, sooner: Iterable[Sooner]) -> list[tuple[str, Ready]]:
    """Have calls come sooner; answers what to send. One that is over gives up its place to the next."""
    told = list(sooner)
    ledger.look_in({each.ticket: each.seconds for each in told if each.seconds > 0}, sooner=True)
    return _wake(ledger, limiter, [each.ticket for each in told if each.seconds <= 0])


def _wake(ledger: Ledger, limiter: Limiter, tickets: list[str]) -> list[tuple[str, Ready]]:
    sends: list[tuple[str, Ready]] = []
    for _ in range(MOST_ROUNDS):
        answers = list(zip(tickets, ledger.wake_all(tickets), strict=True))
        sends += [(ticket.partition("|")[0], step) for ticket, (_, ready) in answers for step in ready]
        over = [ticket for ticket, (word, _) in answers if word == "over"]
        told = limiter.forget(over) if over else []
        ledger.look_in({each.ticket: each.seconds for each in told if each.seconds > 0}, sooner=True)
        if not (tickets := [each.ticket for each in told if each.seconds <= 0]):
            break
    return sends
