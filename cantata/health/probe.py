"""One part of what is to be found out, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast

from cantata.errors import UnavailableError
from cantata.health.facts import Missing

P = ParamSpec("P")
T = TypeVar("T")


class Part(Generic[T]):
    """What a call finds out, unless that takes too long."""

    def __init__(self, who: str, find: Callable[P, T], *args: P.args, **more: P.kwargs) -> None:
        """Begin to find out. `who` is asked, and named if there is no answer."""
        self._who = who
        self._find = partial(find, *args, **more)
        self._found: T | None = None
        self._fault: BaseException | None = None
        self.since = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)  # a daemon: what hangs shall not keep the process
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._found = self._find()
        except BaseException as error:  # noqa: BLE001  # the edge of a thread; it is raised where it is waited for
            self._fault = error

    def wait(self, give_up: float) -> T | Missing:
        """What was found out by then, on the monotonic clock. Raises what the call raised, but for UnavailableError."""
        self._thread.join(max(0.0, give_up - time.monotonic()))
        if not self.is_over:
            return Missing(f"{self._who} gave no answer within {time.monotonic() - self.since:.0f} s".strip())
        if isinstance(self._fault, UnavailableError):
            return Missing(str(self._fault))
        if self._fault is not None:
            raise self._fault
        return cast(T, self._found)
