"""Members of a stack."""

from __future__ import annotations

import os
import subprocess

import pytest

from cantata.operation.embedded import stack_member
from cantata.operation.embedded.stack_member import announce_ready, is_stack_gone


def test_a_worker_announces_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, announce = os.pipe()
    monkeypatch.setenv("CANTATA_READY_FD", str(announce))
    announce_ready.cache_clear()
    stack_member._supervisor.cache_clear()

    announce_ready()
    announce_ready()
    os.close(announce)
    stack_member._supervisor.cache_clear()

    assert os.read(ready, 100) == b"ready\n"
    assert os.read(ready, 100) == b""
    os.close(ready)


def test_a_worker_knows_whether_its_stack_is_gone(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANTATA_STACK_PID", raising=False)
    assert not is_stack_gone()

    for living in (os.getppid(), sleeper.pid):  # its parent, or a parent's parent
        monkeypatch.setenv("CANTATA_STACK_PID", str(living))
        assert not is_stack_gone()

    sleeper.kill()
    sleeper.wait()
    assert is_stack_gone()
