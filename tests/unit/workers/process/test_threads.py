"""The thread in which an agents worker calls quick functions: one at a time, and none behind one that hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cantata.operation.embedded.stack_member import STACK_PID
from cantata_workers.process import threads
from cantata_workers.process.threads import ToolThread, ToolThreadBusyError
from tests.waiting import until


def test_all_calls_are_made_in_one_thread_one_at_a_time() -> None:
    thread, under_way, most = ToolThread(), [0], [0]

    def called(number: int) -> tuple[int, int]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        under_way[0] -= 1
        return number, threading.get_ident()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: thread.call(called, number), range(20)))

    assert [number for number, _ in found] == [*range(20)]
    assert len({ident for _, ident in found}) == 1
    assert (most, thread.is_stuck) == ([1], False)


def test_an_error_is_raised_and_the_thread_is_free_again() -> None:
    thread = ToolThread()

    with pytest.raises(ZeroDivisionError):
        thread.call(divmod, 1, 0)

    assert thread.call(divmod, 7, 2) == (3, 1)


def test_behind_a_function_that_hangs_nothing_waits() -> None:
    thread, over = ToolThread(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(thread.call, over.wait)
        until(lambda: thread.is_stuck, "the thread to be stuck")

        with pytest.raises(ToolThreadBusyError):
            thread.call(len, "")

        over.set()
        assert hanging.result() is True
    assert thread.call(len, "ab") == 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({STACK_PID: "1"}, True),
        ({STACK_PID: "1", "CANTATA_TOOL_MEMORY_MB": "512"}, False),
        ({STACK_PID: "1", "CANTATA_TOOLS_IN_AGENTS": "0"}, False),
        ({"CANTATA_TOOLS_IN_AGENTS": "1"}, True),
        ({"CANTATA_TOOLS_IN_AGENTS": "1", "CANTATA_TOOL_MEMORY_MB": "512"}, True),
    ],
    ids=str,
)
def test_it_is_used_in_a_stack_or_where_it_is_configured(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    for variable in (STACK_PID, "CANTATA_TOOL_MEMORY_MB", "CANTATA_TOOLS_IN_AGENTS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)

    assert threads.may_call_tools() is expected
