"""Exceptions out of users' code that are no `Exception`: CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit.

`except Exception` lets them pass, and each would end another part of a process: an event loop, a worker, a server. They are failures of
the code that raised them, save those that a signal raised through it: Ctrl-C during a run inside a test or a command, or SIGTERM.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from cantata.errors import CodeExitError

Result = TypeVar("Result")

SIGNALS_S = 1.0  # until the main thread handles a signal that came just before it slept
NAMES = frozenset({"CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit"})

_INTERRUPT = getattr(signal, "SIGURG", None)  # ignored where nobody handles it, and hardly used; Windows has none
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MARK = "_cantata_signal"
_is_marking = False  # read and written by the main thread only, in which Python calls the handlers of signals


class InterruptedFunction(BaseException):
    """Ends a function in the thread that executes it."""


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a function with which another thread ends what the block executes; behind the block it does nothing.

    InterruptedFunction is raised in the block. In the main thread that ends a function that sleeps or waits too; in another one, and
    on Windows, only when it executes Python again. Code in C that neither returns nor handles signals goes on.
    """
    ident, lock, is_over, is_wanted = threading.get_ident(), threading.Lock(), False, False
    by_signal = _INTERRUPT is not None and _is_main_thread()

    def handle(*_: object) -> None:
        if is_wanted and not is_over:
            raise InterruptedFunction

    def interrupt() -> None:
        nonlocal is_wanted
        with lock:
            if is_over:
                return
            is_wanted = True
            if by_signal and _INTERRUPT is not None:
                signal.pthread_kill(ident, _INTERRUPT)
            else:
                _raise_in(ident, InterruptedFunction)

    before = signal.signal(_INTERRUPT, handle) if by_signal and _INTERRUPT is not None else None
    try:
        yield interrupt
    finally:
        while not is_over:  # it may come between any two instructions, these too
            with suppress(InterruptedFunction), lock:
                is_over = True
        if by_signal and _INTERRUPT is not None:
            signal.signal(_INTERRUPT, before or signal.SIG_DFL)
        elif is_wanted:
            with suppress(InterruptedFunction):
                _raise_in(ident, None)  # one that did not come in time


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error and ctypes.py_object(error))


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
        if hasattr(following, _MARK) or isinstance(following, InterruptedFunction):
            return True
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return False


def result_of(future: Future[Result]) -> Result:
    """Return the result of a future, or raise what it raised. Signals and interrupts are handled meanwhile.

    Python handles them between two of its instructions: one that comes just before it sleeps would wait with it.
    """
    try:
        while not wait([future], SIGNALS_S).done:
            pass
        return future.result()
    except InterruptedFunction:
        future.cancel()
        raise


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def failure_of(what: str, error: BaseException, *, code: str = "tool_error") -> CodeExitError:
    """Return the failure of the code called `what`, which raised an exception that is no `Exception`. Raises it if a signal caused it."""
    if is_of_signal(error):
        raise error
    name, text = type(error).__name__, str(error)
    return CodeExitError(
        f"{what} raised {name}{f': {text}' if text else ''}, which is no Exception, so it is not retried", code=code
    )


@contextmanager
def contained(what: str, *, code: str = "tool_error") -> Iterator[None]:
    """Raise CodeExitError in place of an exception of the block that is no `Exception`. The block has no `await`."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise failure_of(what, error, code=code) from error
