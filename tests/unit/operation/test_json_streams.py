"""Lines that a process prints, as JSON."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cantata.operation import json_streams
from cantata.operation.json_streams import MAX_LINE_CHARS, JsonStream


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are not configured: a process of this suite may have done that."""
    monkeypatch.setattr(json_streams, "_rendered", json_streams._render)
    monkeypatch.setattr(json_streams, "_names", json_streams._no_names)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_line_is_an_object_and_an_object_stays_as_it_is() -> None:
    behind = io.StringIO()
    stream = JsonStream(behind, "stdout", "info")

    print("one\n\ntwo", end=" ", file=stream)  # what is printed is what this is about
    stream.buffer.write("and ä\n".encode())
    stream.write('{"url": "http://h"}\n[1]\n{no json\n')
    stream.write("last")
    stream.finish()

    found = lines(behind)
    assert [line.get("event") for line in found] == ["one", "two and ä", None, "[1]", "{no json", "last"]
    assert found[2] == {"url": "http://h"}
    assert {(line["logger"], line["level"]) for line in found if "event" in line} == {("stdout", "info")}
    assert not stream.isatty()


def test_lines_of_threads_do_not_mix_and_one_without_end_is_written_in_pieces() -> None:
    behind = io.StringIO()
    stream = JsonStream(behind, "stderr", "warning")

    stream.write("of this ")
    thread = threading.Thread(target=stream.write, args=("of another\n",))
    thread.start()
    thread.join()
    stream.write("thread\n")
    for _ in range(3):
        stream.write("x" * MAX_LINE_CHARS)
    stream.finish()

    assert [line["event"][:15] for line in lines(behind)][:2] == ["of another", "of this thread"]
    assert sum(len(line["event"]) for line in lines(behind)[2:]) == 3 * MAX_LINE_CHARS


def test_in_a_step_no_text_poses_as_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = io.StringIO()
    monkeypatch.setattr(json_streams, "_names", lambda: {"run": "r", "step": "s"})

    JsonStream(behind, "stdout", "info").write('{"event": "redis_back"}\n')

    (line,) = lines(behind)
    assert (line["event"], line["run"], line["step"]) == ('{"event": "redis_back"}', "r", "s")


CODE = """
import io, logging, sys, threading, warnings
from cantata.operation import json_streams
json_streams.install_if_wanted()
warnings.warn("look out")
logging.getLogger("theirs").warning("before logs are configured: %s", 1)
json_streams.report("told", "a text", {"status": 3})
thread = threading.Thread(target=lambda: 1 / 0, name="other")
thread.start()
thread.join()
class Odd:
    def __del__(self): raise ValueError("ignored")
Odd()
sys.stdout.reconfigure(errors="replace")
own = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
own.write("of a stream of its own: ä\\n")
print("unfinished", end="")
raise LookupError("at the end")
"""


def run(tmp_path: Path, form: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, json_streams.FORMAT: form},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("form", ["json", ""])
def test_whatever_a_process_says_is_json_where_there_is_no_terminal(tmp_path: Path, form: str) -> None:
    done = run(tmp_path, form)

    found = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    by_event = {line["event"]: line for line in found if line["event"] != "uncaught_exception"}
    assert done.returncode == 1
    assert by_event["look out"]["category"] == "UserWarning"
    assert by_event["before logs are configured: 1"]["logger"] == "theirs"
    assert by_event["told"]["status"] == 3
    assert by_event["unraisable_exception"]["error"] == "ValueError: ignored"
    assert by_event["unfinished"]["logger"] == by_event["of a stream of its own: ä"]["logger"] == "stdout"
    errors = {line["error"]: line for line in found if line["event"] == "uncaught_exception"}
    assert errors["ZeroDivisionError: division by zero"]["thread"] == "other"
    assert errors["LookupError: at the end"]["exception"].startswith("Traceback (most recent call last):\n")
    assert all(line["timestamp"].endswith("Z") for line in found)


def test_for_people_nothing_changes(tmp_path: Path) -> None:
    done = run(tmp_path, "human")

    assert done.stdout == "of a stream of its own: ä\nunfinished"
    assert "\na text\n" in done.stderr
    assert done.stderr.endswith("LookupError: at the end\n")
