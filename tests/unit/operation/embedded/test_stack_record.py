"""The record of a stack."""

from __future__ import annotations

import json
import os

import pytest

from cantata.operation.embedded import StackProcess, StackStatus
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.process_identity import ProcessIdentity
from cantata.operation.embedded.stack_record import StackRecord, clear_stale_record, read_record


def some_record(supervisor: ProcessIdentity) -> StackRecord:
    processes = (StackProcess("tools", ("tools",), ProcessIdentity(2**22 + 2, "1"), 1.0),)
    return StackRecord(StackProcess("supervisor", (), supervisor, 0.0), "/run/valkey.sock", True, None, processes)


def test_a_record_is_read_as_it_was_written(home: Home) -> None:
    home.prepare()
    record = some_record(ProcessIdentity(2**22 + 1, "1"))

    record.write(home)

    assert read_record(home) == record
    assert [path.name for path in home.path.glob("stack*")] == ["stack.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"supervisor": 1}', '{"supervisor": {"pid": 1}}'])
def test_a_record_that_cannot_be_read_does_not_count(home: Home, text: str) -> None:
    home.prepare()
    home.record.write_text(text)

    assert read_record(home) is None


def test_the_record_of_a_dead_stack_is_cleared_unless_somebody_is_busy_there(home: Home) -> None:
    home.prepare()
    some_record(ProcessIdentity(2**22 + 1, "1")).write(home)
    lock = home.try_lock()
    assert lock is not None

    clear_stale_record(home)
    assert home.record.exists()

    os.close(lock)
    clear_stale_record(home)
    assert not home.record.exists()


def test_a_status_is_values_for_json(home: Home) -> None:
    process = StackProcess("tools", ("tools",), ProcessIdentity(2**22 + 1, "1"), 1.5)

    result = StackStatus("/home", running=True, processes=(process,)).to_json()

    assert json.loads(json.dumps(result)) == {
        "home": "/home",
        "running": True,
        "kept": False,
        "url": None,
        "flower_url": None,
        "gateway_url": None,
        "processes": [{"name": "tools", "queues": ["tools"], "pid": 2**22 + 1, "alive": False, "started_s": 1.5}],
        "code_fault": "",
        "config": "",
    }
