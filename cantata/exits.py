"""Exceptions out of users' code that are no `Exception`: CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit.

`except Exception` lets them pass, and each would end another part of a process: an event loop, a worker, a server. They are failures of
the code that raised them, save those that a signal raised through it: Ctrl-C during a run inside a test or a command, or SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from cantata.errors import CodeExitError

Result = TypeVar("Result")

SIGNALS_S = 1.0  # until the main thread handles a signal that came just before it slept
NAMES = frozenset({"CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit"})

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MARK = "_cantata_signal"
_is_marking = False  # read and written by the main thread only, in which Python calls the handlers of signals


@contextmanager
def marking_signals() -> Iterator[None]:
    """Mark the exceptions that the process's handlers of signals raise while the block lasts, so that `is_of_signal` knows them."""
    global _is_marking
    if _is_marking or not _is_main_thread():
        yield
        return
    marked: dict[signal.Signals, tuple[Any, Any]] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # else the signal ends the process, or is ignored
                marked[number] = handler, _marking(number, handler)
                signal.signal(number, marked[number][1])
        _is_marking = True
        yield
    finally:
        _is_marking = False
        for number, (handler, ours) in marked.items():
            if signal.getsignal(number) is ours:  # the code may have set its own
                signal.signal(number, handler)


def _marking(number: int, handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    def handle(received: int, frame: Any) -> None:
        try:
            handler(received, frame)
        except BaseException as error:
            setattr(error, _MARK, number)
            raise

    return handle


def is_of_signal(error: BaseException) -> bool:
    """Return whether a signal raised an exception, or the one that it follows. Where nobody marks them, Ctrl-C is taken for the cause."""
    if not _is_main_thread():
        return False
    if not _is_marking and isinstance(error, KeyboardInterrupt):
        return callable(signal.getsignal(signal.SIGINT))
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        if hasattr(following, _MARK):
            return True
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return False


def result_of(future: Future[Result]) -> Result:
    """Return the result of a future, or raise what it raised. Signals are handled meanwhile.

    Python handles them in the main thread, between two of its instructions: one that comes just before it sleeps would wait with it.
    """
    while _is_main_thread() and not wait([future], SIGNALS_S).done:
        pass
    return future.result()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def failure_of(what: str, error: BaseException, *, code: str = "tool_error") -> CodeExitError:
    """Return the failure of the code called `what`, which raised an exception that is no `Exception`. Raises it if a signal caused it."""
    if is_of_signal(error):
        raise error
    name, text = type(error).__name__, str(error)
    return CodeExitError(f"{what} raised {name}{f': {text}' if text else ''}, which is no Exception, so it is not retried", code=code)


@contextmanager
def contained(what: str, *, code: str = "tool_error") -> Iterator[None]:
    """Raise CodeExitError in place of an exception of the block that is no `Exception`. The block has no `await`."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise failure_of(what, error, code=code) from error
