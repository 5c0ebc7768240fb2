"""Destinations and forms of log lines."""

from __future__ import annotations

import contextvars
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from cantata.operation import logs
from cantata.operation.logs.lines import LOGGER, bind


class ListSink:
    """A sink that stores all lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def add(self, run_id: str, line: dict[str, Any]) -> None:
        self.lines.append((run_id, line))

    def flush_soon(self) -> None:
        """Nothing is pending."""

    flush = flush_soon

    @property
    def events(self) -> list[str]:
        return [line["event"] for _, line in self.lines]


@pytest.fixture
def kept() -> Iterator[ListSink]:
    """A sink; the configuration of logs is restored after the test."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    kept = ListSink()
    logs.set_sink(kept)
    yield kept
    logs.set_sink(None)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def logger() -> Any:
    return structlog.get_logger("ours")


def test_lines_of_a_run_are_kept_from_info_on_and_written_from_warning_on(
    kept: ListSink, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logs(for_runs=True)
    with bind({"run": "r", "step": "s"}):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger("theirs").log(level, "theirs %s", level)
        logger().debug("ours 10")
        logger().info("ours 20")
        logger().warning("ours 30")
        logging.getLogger("httpx").info("HTTP Request")
    logger().info("of nobody")
    logger().info("of another", run="q")

    assert kept.events == ["theirs 20", "theirs 30", "ours 20", "ours 30", "of another"]
    assert [run_id for run_id, _ in kept.lines] == ["r", "r", "r", "r", "q"]
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in written] == ["theirs 30", "ours 30"]
    assert all((line["run"], line["step"], line["level"]) == ("r", "s", "warning") for line in written)


def test_operators_see_at_any_level_that_a_worker_is_ready_and_nothing_printed_twice(
    kept: ListSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANTATA_LOG_LEVEL", "error")
    logs.configure_logs(for_runs=True)
    logger().info("worker_ready", name="w")
    monkeypatch.setenv("CANTATA_LOG_LEVEL", "debug")
    logs.configure_logs(for_runs=True)
    with bind({"run": "r"}):
        logging.getLogger(LOGGER).info("printed")

    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["worker_ready"]
    assert kept.events == ["printed"]


@pytest.mark.parametrize(("level", "events"), [("off", []), ("error", ["e"]), ("debug", ["d", "e"])])
def test_the_level_of_runs_is_their_own(
    kept: ListSink, monkeypatch: pytest.MonkeyPatch, level: str, events: list[str]
) -> None:
    monkeypatch.setenv("CANTATA_RUN_LOG_LEVEL", level)
    logs.configure_logs(for_runs=True)

    with bind({"run": "r"}):
        logger().debug("d")
        logging.getLogger("theirs").error("e")

    assert kept.events == events


def test_other_processes_keep_nothing(kept: ListSink) -> None:
    logs.configure_logs()

    with bind({"run": "r"}):
        logger().error("e")

    assert kept.events == []


def test_names_go_with_tasks_and_end_with_the_block(kept: ListSink) -> None:
    logs.configure_logs(for_runs=True)
    with bind({"run": "r"}):
        inside = contextvars.copy_context()
        thread = threading.Thread(target=lambda: logger().warning("in a thread of its own"))
        thread.start()
        thread.join()
    inside.run(lambda: logger().warning("later, in its context"))
    logger().warning("after")

    assert kept.events == ["later, in its context"]


def test_a_tool_cannot_speak_for_another_run(kept: ListSink, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logs(for_runs=True)
    with bind({"run": "r", "step": "s"}):
        logger().warning("from a tool", run="q", step=7, other=1)
        logging.getLogger("theirs").warning({"run": "q", "n": 1})
        structlog.get_logger("cantata_workers.process.process").info("ours", run="q", step="t")
    logging.getLogger("theirs").warning({"run": "q"})

    assert [(run_id, line["event"], line["step"]) for run_id, line in kept.lines] == [
        ("r", "from a tool", "s"),
        ("r", "{'run': 'q', 'n': 1}", "s"),
        ("q", "ours", "t"),
    ]
    assert kept.lines[0][1]["fields"] == {"logged_run": "q", "logged_step": 7, "other": 1}
    assert json.loads(capsys.readouterr().err.splitlines()[0])["run"] == "r"


def test_a_malformed_message_fails_nothing_else(kept: ListSink, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logs(for_runs=True)
    root = logging.getLogger()
    root.handlers[:] = [
        handler for handler in root.handlers if type(handler).__module__ == logs.__name__
    ]  # pytest's would raise

    with bind({"run": "r"}):
        logging.getLogger("theirs").warning("%d", "no number")
        logging.getLogger("theirs").warning("%d", 1)

    assert kept.events == ["1"]
    assert '"event": "1"' in capsys.readouterr().err


def test_a_person_reads_plain_lines_without_secrets(
    kept: ListSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANTATA_LOG_FORMAT", "human")
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    monkeypatch.setattr(logs, "_secrets_at", -100.0)
    logs.configure_logs()
    try:
        raise ValueError("with hunter2hunter2")
    except ValueError:
        logger().exception("broke", detail={"key": ["hunter2hunter2"]})

    text = capsys.readouterr().err
    assert "broke" in text
    assert "ValueError: with ***" in text
    assert "hunter2" not in text
    monkeypatch.setattr(logs, "_secrets_at", -100.0)
