"""Blocking calls in background threads, each waited for until a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast

from cantata.errors import UnavailableError
from cantata.health.facts import Unavailable

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, source: str, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> None:
        """Start the call. `source` is named in the reason if there is no answer in time."""
        self._source = source
        self._function = partial(function, *args, **more)
        self._result: T | None = None
        self._error: BaseException | None = None
        self.started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)  # a daemon: a call that hangs must not keep the process alive
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True once the call has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  # the edge of a thread; `wait` raises it
            self._error = error

    def wait(self, deadline: float) -> T | Unavailable:
        """Return the result; Unavailable for an UnavailableError, or if there is none by the deadline (of the monotonic clock).

        Raises any other error of the call.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self.is_over:
            return Unavailable(f"{self._source} gave no answer within {time.monotonic() - self.started_at:.0f} s".strip())
        if isinstance(self._error, UnavailableError):
            return Unavailable(str(self._error))
        if self._error is not None:
            raise self._error
        return cast(T, self._result)
