"""Pauses that providers asked for, as a process knows them without a call of Redis for each model call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cantata.engine.limits.limiter import Limiter
from cantata.ledger.redis import clock


class Pauses:
    """The pauses of models, read once a second. A process that calls no models does not read them."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._until: Mapping[str, float] | None = None
        self._is_needed = False

    def may_hold(self, model: str) -> bool:
        """Return whether a model may be paused, so that the limiter must be asked. A pause set by another process counts a second later."""
        self._is_needed = True
        return self._until is None or self._until.get(model, 0.0) > clock.now()

    def begin(self, model: str, seconds: float, *, asked_s: float | None = None, message: str = "") -> None:
        """Pause all calls of a model, in all processes, at its provider's request, as `Limiter.pause`."""
        self._limiter.pause(model, seconds, asked_s=asked_s, message=message)
        if self._until is not None:
            self._until = {**self._until, model: clock.now() + seconds}

    def refresh(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Read the pauses, if calls are made here. `read` is `read_pauses`."""
        if self._is_needed:
            self._until = read()
