"""The run log is one file for each folder and process, and nothing fails because of it."""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from cantata.config.user_code.function_names import IN_WORKER
from cantata_frontends.agentchain.run_log import RunLog


def test_lines_are_json_with_the_time_first(tmp_path: Path) -> None:
    log = RunLog(tmp_path, verbose=False)

    log.write("router_decision", {"run_id": "r", "agent": "änn"}, at_ms=1_700_000_000_123)
    log.write("chat_ended", {})

    assert log.file is not None
    first, second = log.file.read_text("utf-8").splitlines()
    assert (
        first
        == '{"timestamp": "2023-11-14T22:13:20.123+00:00", "event": "router_decision", "run_id": "r", "agent": "änn"}'
    )
    assert datetime.fromisoformat(json.loads(second)["timestamp"]).utcoffset() is not None


def test_chains_of_one_process_share_the_file_of_a_folder(tmp_path: Path) -> None:
    one, two, other = (
        RunLog(folder, verbose=False) for folder in (tmp_path / "a", str(tmp_path / "a"), tmp_path / "b")
    )

    assert one.file == two.file
    assert one.file != other.file
    assert re.fullmatch(r"run_\d{8}_\d{6}_\d{6}\.jsonl", str(one.file and one.file.name))


def test_a_worker_that_imports_a_script_writes_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(IN_WORKER, "1")

    RunLog(tmp_path, verbose=True).write("AgentChain initialized", {})

    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], "")


def test_a_fork_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path, verbose=False)
    before = log.file

    monkeypatch.setattr(os, "getpid", lambda: 1)

    assert log.file != before


def test_a_chat_has_a_file_of_its_own(tmp_path: Path) -> None:
    chat = RunLog(tmp_path, verbose=False).for_chat()
    chat.write("chat_started", {})

    assert [file.name for file in tmp_path.iterdir()] == [str(chat.file and chat.file.name)]
    assert RunLog(None, verbose=False).for_chat().file is None


def test_it_is_wanted_by_a_folder_by_verbose_and_by_logging(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    assert not RunLog(None, verbose=False).is_wanted
    assert RunLog(None, verbose=True).is_wanted
    assert RunLog(tmp_path, verbose=False).is_wanted
    with caplog.at_level(logging.INFO, "cantata.frontends.agentchain"):
        assert RunLog(None, verbose=False).is_wanted


def test_a_summary_is_a_line_that_is_not_too_long(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "cantata.frontends.agentchain"):
        RunLog(None, verbose=True).write(
            "process_input_start", {"run_id": "r", "session": "s", "mode": "router", "input": "a\nb" * 1000}
        )

    told = capsys.readouterr().out
    assert told.startswith('process_input_start mode="router" input="a\\nba\\nb')
    assert (told.count("\n"), len(told) < 300, "run_id" in told) == (1, True, False)
    assert caplog.records[0].getMessage() == told.strip()


def test_what_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    log = RunLog(tmp_path / "file", verbose=False)

    for _ in range(3):
        log.write("add_agent", {})

    assert [record.levelname for record in caplog.records if "cannot be written" in record.getMessage()] == ["WARNING"]


def test_a_full_disk_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog("/dev", verbose=False, file=Path("/dev/full"))

    for _ in range(3):
        log.write("add_agent", {})

    assert sum("No space left" in record.getMessage() for record in caplog.records) == 1


def test_text_that_is_no_utf_8_is_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path, verbose=False)

    log.write("process_input_start", {"input": "\ud800"})

    assert log.file is not None
    assert r"\ud800" in log.file.read_text()
