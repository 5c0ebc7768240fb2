"""Log lines of runs: fields of records, within bounds."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from cantata.operation.logs.lines import LINE_BYTES, LogLine, encode, line_of
from cantata.operation.logs.secrets import MAX_SCANNED_CHARS


def record(message: Any, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("tool", logging.WARNING, __file__, 1, message, arguments, info)
    if isinstance(message, dict) and "event" in message:
        made._logger = None  # as structlog marks what it made
    return made


def kept(line: dict[str, Any], *secrets: str) -> LogLine:
    text = encode(line, secrets)
    assert len(text.encode()) <= LINE_BYTES
    return LogLine.model_validate(json.loads(text))


def test_a_record_of_a_library_is_a_text_with_the_names_of_the_step() -> None:
    line = line_of(record("%d of %s", 1, "two"), {"run": "r", "step": "s", "attempt": 2, "worker": "w"})

    assert line.pop("run") == "r"
    found = kept(line)
    assert (found.event, found.logger, found.level, found.step, found.attempt, found.worker) == (
        "1 of two",
        "tool",
        "warning",
        "s",
        2,
        "w",
    )


def test_an_event_of_ours_has_fields_and_says_itself_whose_it_is() -> None:
    line = line_of(
        record({"event": "lost", "run": "other", "step": "t", "count": 3, "level": "info"}), {"run": "r", "step": "s"}
    )

    assert line.pop("run") == "other"
    found = kept(line)
    assert (found.event, found.step, found.logger, found.fields) == ("lost", "t", None, {"count": 3})


def test_a_dict_that_a_library_logs_is_a_text() -> None:
    line = line_of(record({"run": "mine", "count": 3}), {"run": "r"})

    assert line.pop("run") == "r"
    assert kept(line).event == "{'run': 'mine', 'count': 3}"


def test_of_a_huge_text_only_the_beginning_is_looked_through() -> None:
    found = kept({"at": 1.0, "level": "info", "event": "hunter2hunter2 " + "z" * MAX_SCANNED_CHARS}, "hunter2hunter2")

    assert found.event.startswith("*** zzz")
    assert found.event.endswith(f"({MAX_SCANNED_CHARS + 15} characters)")


def test_an_error_is_told_with_its_traceback() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        foreign, ours = record("oh", error=error), record({"event": "oh", "exc_info": True})
        lines = [
            line_of(foreign, {"run": "r"}),
            line_of(ours, {"run": "r"}),
            line_of(record({"event": "oh", "exc_info": error}), {"run": "r"}),
        ]

    assert all("ValueError: broken" in line["fields"]["exception"] for line in lines)


@pytest.mark.parametrize("fields", [
    {"text": "é" * 50_000}, {f"k{i}": "x" * 400 for i in range(100)}, {"list": ["y" * 3000] * 40}, {"k" * 9000: 1},
    {f"{i}" * 90: i for i in range(500)},
])  # fmt: skip
def test_a_line_is_cut_to_its_bound(fields: dict[str, Any]) -> None:
    found = kept({"at": 1.0, "level": "info", "event": "z" * 5000, "step": "s", "fields": fields})

    assert found.step == "s"
    assert found.event.startswith("zzz")
    assert "5000 characters" in found.event


def test_values_that_json_has_not_become_text() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    found = kept(
        {
            "at": 1.0,
            "level": "info",
            "event": "e",
            "fields": {"a": {1}, "b": float("nan"), "c": Odd(), "d": b"x", "e": "\ud800"},
        }
    )

    assert found.fields == {
        "a": [1],
        "b": "nan",
        "c": "<Odd that cannot be shown: RuntimeError>",
        "d": "b'x'",
        "e": "?",
    }


def test_secrets_are_in_no_part_of_a_line() -> None:
    line = {
        "at": 1.0,
        "level": "info",
        "event": "key hunter2hunter2",
        "fields": {"hunter2hunter2": ["hunter2hunter2"], "k": "sk-abcdefghijkl"},
    }

    assert "hunter2" not in encode(line, ["hunter2hunter2"])
    assert "abcdefghijkl" not in encode(line, [])
