"""Exceptions that are no `Exception`: told from those that a signal raises, and turned into the failure of their code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from cantata.errors import CodeExitError
from cantata.operation import exits


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Python's own handler of Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(10)


def leave() -> None:
    raise KeyboardInterrupt("mine")


def caught(code: Callable[[], None]) -> BaseException:
    try:
        code()
    except BaseException as error:  # noqa: BLE001  # they are about any
        return error
    raise AssertionError


def test_while_signals_are_marked_code_that_raises_is_told_from_them() -> None:
    with exits.marking_signals():
        assert exits.is_of_signal(caught(interrupt))
        assert not exits.is_of_signal(caught(leave))
        with exits.marking_signals():  # inside one another
            assert exits.is_of_signal(caught(interrupt))
        assert not exits.is_of_signal(caught(leave))

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_elsewhere_an_interrupt_is_taken_for_ctrl_c_unless_that_is_ignored() -> None:
    assert exits.is_of_signal(caught(leave))
    assert not exits.is_of_signal(SystemExit(3))

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a prefork child
    assert not exits.is_of_signal(caught(leave))


def test_a_handler_that_code_set_meanwhile_is_left_in_place() -> None:
    def own(*_: object) -> None: ...

    with exits.marking_signals():
        signal.signal(signal.SIGINT, own)

    assert signal.getsignal(signal.SIGINT) is own


def test_a_thread_gets_no_signals() -> None:
    found: list[bool] = []

    def run() -> None:
        with exits.marking_signals():
            found.append(exits.is_of_signal(caught(leave)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert found == [False]


def test_what_is_an_exception_passes_and_what_is_none_becomes_a_failure() -> None:
    with pytest.raises(ValueError, match="v"), exits.contained("it"):
        raise ValueError("v")
    with (
        pytest.raises(
            CodeExitError, match="it raised SystemExit: 3, which is no Exception, so it is not retried"
        ) as failed,
        exits.contained("it", code="c"),
    ):
        raise SystemExit(3)
    assert (failed.value.code, failed.value.retryable) == ("c", False)
    with pytest.raises(KeyboardInterrupt), exits.contained("it"):
        leave()


def test_a_signal_that_does_not_wake_the_main_thread_is_handled_soon() -> None:
    """Python runs handlers in the main thread only, and this signal interrupts another thread: as one that comes just before a sleep."""
    future: Future[None] = Future()
    asleep = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    asleep.start()

    with pytest.raises(KeyboardInterrupt):
        exits.result_of(future)
    asleep.join()


def test_a_result_is_passed_on() -> None:
    failed: Future[None] = Future()
    failed.set_exception(TimeoutError("its own"))
    with ThreadPoolExecutor() as threads:
        assert exits.result_of(threads.submit(lambda: 3)) == 3
        assert threads.submit(exits.result_of, threads.submit(lambda: 4)).result() == 4
    with pytest.raises(TimeoutError, match="its own"):
        exits.result_of(failed)
