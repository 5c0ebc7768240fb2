"""What workers and tools log for a run, found again from anywhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from cantata.client.client import EmbeddedClient
from cantata.client.runs import ChainRun
from cantata.ledger.redis.keys import run_key
from cantata.ledger.runs.log_store import MAX_BYTES, MAX_LINES, Logs
from cantata.operation.logs.lines import LINE_BYTES, LogLine
from cantata.surfaces.cli.main import submit
from tests.integration.traces.conftest import PATIENCE_S, SECRET, node
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)


def ran(client: EmbeddedClient, *nodes: dict[str, Any], **request: Any) -> ChainRun:
    """A chain that is over."""
    run = client.submit_chain({"nodes": list(nodes), "entry_node": nodes[0]["node_id"], **request})
    run.wait(PATIENCE_S)
    return run


def lines(client: EmbeddedClient, run: ChainRun, count: int = 1) -> list[LogLine]:
    """What was logged for it, once there are so many lines."""
    found: list[LogLine] = until(
        lambda: len(read := Logs(client.redis, run.run_id).read()) >= count and read, f"{count} lines"
    )
    return found


def written(client: EmbeddedClient, run: ChainRun, last: str) -> list[LogLine]:
    """The lines of a run, once the last begins so."""
    kept = Logs(client.redis, run.run_id)
    found: list[LogLine] = until(
        lambda: (read := kept.read()) and read[-1].event.startswith(last) and read, "the last line"
    )
    return found


def asked(client: EmbeddedClient, *words: str) -> Result:
    """What a command shows."""
    return CliRunner().invoke(submit, words, env={"REDIS_URL": client.redis_url})


def test_what_a_tool_logs_is_found_with_its_step(client: EmbeddedClient) -> None:
    run = ran(client, node("one", "say", words=["a", "b"], _next_node="two"), node("two", "say_async", word="c"))

    found = lines(client, run, 3)

    assert [(line.step, line.attempt, line.event, line.level) for line in found] == [
        ("one", 1, "a", "info"),
        ("one", 1, "b", "info"),
        ("two", 1, "c", "info"),
    ]
    assert {line.logger for line in found} == {"trace_tools"}
    assert all(line.worker and line.worker.startswith("tools@") for line in found)
    record = run.record()
    assert all(record.created_at_ms / 1000 - 1 <= line.at <= (record.closed_at_ms or 0) / 1000 + 1 for line in found)


def test_a_run_without_lines_has_no_log(client: EmbeddedClient) -> None:
    run = ran(client, node("x", "slow", seconds=0))

    assert list(run.logs()) == list(run.logs(follow=True)) == []
    assert not client.redis.exists(f"{run_key(None, run.run_id)}:logs")


def test_failures_and_losses_are_told(client: EmbeddedClient, tmp_path: Path) -> None:
    failed = ran(client, node("x", "fail", message="broken"))
    lost = ran(client, node("x", "die_once", mark=str(tmp_path / "mark")))
    late = ran(client, node("x", "slow", seconds=60), timeout=1)
    hasty = ran(client, node("x", "hasty", seconds=60))

    told, failure = lines(client, failed, 2)
    assert (told.event, told.fields["tool"]) == ("tool_failed", "trace_tools:fail")
    assert "raise RuntimeError(message)" in str(told.fields["exception"])
    assert (failure.event, failure.level, failure.fields["code"]) == ("step_failed", "warning", "tool_error")
    assert "RuntimeError: broken" in str(failure.fields["error"])
    (loss,) = lines(client, lost)
    assert (loss.event, loss.attempt, loss.fields["lost_attempt"]) == ("attempt_lost", 2, 1)
    until(
        lambda: (
            ("run_ended", "timed_out")
            in [(line.event, line.fields.get("status")) for line in Logs(client.redis, late.run_id).read()]
        ),
        "the line of who ended the run, beside that of who lost the lease",
    )
    assert "step_timed_out" in [line.event for line in lines(client, hasty)]  # though its process was killed


def test_the_key_of_a_provider_is_in_no_log(client: EmbeddedClient) -> None:
    run = ran(client, node("x", "tell_secret"))

    said = [line.model_dump_json() for line in lines(client, run, 3)]
    logs = "".join(log.read_text() for log in (client.stack.home.logs).glob("*.log"))

    assert "the key is ***" in said[0]
    assert "refused with ***" in said[1]
    assert SECRET not in "".join(said)
    assert "the key is ***" in logs
    assert SECRET not in logs


def test_what_a_tool_prints_is_found_with_its_step(client: EmbeddedClient) -> None:
    run = ran(
        client,
        node("one", "speak", words=['{"n": 1}', '{"n": 2}'], _next_node="two"),
        node("two", "say", words=["logged"]),
    )

    assert [(line.step, line.event, line.logger) for line in lines(client, run, 3)] == [
        ("one", '{"n": 1}', "print"),
        ("one", '{"n": 2}', "print"),
        ("two", "logged", "trace_tools"),
    ]


def test_a_log_is_bounded_and_goes_with_its_run(client: EmbeddedClient) -> None:
    many = ran(client, node("x", "flood", lines=MAX_LINES + 300))
    large = ran(client, node("x", "flood", lines=90, size=6000))

    newest = until(
        lambda: (read := Logs(client.redis, many.run_id).read()) and read[-1].event.startswith("1299 ") and read,
        "the last line",
    )
    assert len(newest) == MAX_LINES
    assert newest[0].event.startswith("300 ")
    assert Logs(client.redis, many.run_id).dropped() == 300
    found = written(client, large, "89 ")
    entries = cast("list[tuple[str, dict[str, str]]]", client.redis.xrange(f"{run_key(None, large.run_id)}:logs"))
    texts = [fields["d"] for _, fields in entries]
    assert all(len(text.encode()) <= LINE_BYTES for text in texts)
    assert sum(map(len, texts)) <= MAX_BYTES
    assert "(6003 characters)" in found[-1].event
    for run in (many, large):
        key = run_key(None, run.run_id)
        assert 0 < client.redis.pttl(f"{key}:logs") <= client.redis.pttl(key) + 1000


def test_a_fork_begins_with_an_empty_log(client: EmbeddedClient) -> None:
    run = ran(client, node("one", "say", words=["before"], _next_node="two"), node("two", "fail"))
    lines(client, run, 3)
    fork = client.retry(run.run_id)
    fork.wait(PATIENCE_S)

    assert isinstance(fork, ChainRun)
    assert "before" not in [line.event for line in lines(client, fork)]


def test_the_command_shows_the_lines_that_are_asked_for(client: EmbeddedClient) -> None:
    run = ran(
        client,
        node("one", "say", words=["a tale"], _next_node="two"),
        node("two", "say", words=["a warning"], level="warning"),
    )
    lines(client, run, 2)

    plain = asked(client, "logs", run.run_id)
    as_json = asked(client, "logs", run.run_id, "--json", "--step", "one")
    warnings = asked(client, "logs", run.run_id, "--level", "warning")

    assert plain.exit_code == 0
    first, second = plain.stdout.splitlines()
    assert first.endswith(" one#1 a tale")
    assert " INFO " in first
    assert " tools@" in second
    (only,) = map(json.loads, as_json.stdout.splitlines())
    assert (only["event"], only["step"], only["attempt"], only["level"]) == ("a tale", "one", 1, "info")
    assert warnings.stdout.splitlines() == [second]
    assert "none of the 2 log lines" in asked(client, "logs", run.run_id, "--step", "three").stderr
    assert asked(client, "logs", "no-such-run").exit_code == 2


def test_a_log_can_be_followed_until_the_run_is_over(client: EmbeddedClient) -> None:
    waits = {"node_id": "ok", "kind": "wait", "next_node": "b"}
    nodes = [node("a", "say", words=["first"], _next_node="ok"), waits, node("b", "fail")]
    run = client.submit_chain({"nodes": nodes, "entry_node": "a"})
    heard: list[str] = []

    def listen() -> None:
        for line in Logs(client.redis, run.run_id).follow():
            heard.append(line.event)

    follower = threading.Thread(target=listen, daemon=True)
    follower.start()
    until(lambda: heard == ["first"], "the first line")
    run.signal("ok", 1)
    follower.join(PATIENCE_S)

    assert not follower.is_alive()
    assert heard == ["first", "tool_failed", "step_failed"]


def test_every_line_of_a_worker_is_json_with_its_names(client: EmbeddedClient) -> None:
    run = ran(client, node("x", "say", words=["loud"], level="error"))
    log = client.stack.home.logs / "tools.log"
    said = until(lambda: [line for line in log.read_text().splitlines() if run.run_id in line], "the line")

    (line,) = map(json.loads, said)
    assert line["event"] == "loud"
    assert (line["run"], line["step"], line["attempt"], line["level"], line["logger"]) == (
        run.run_id,
        "x",
        1,
        "error",
        "trace_tools",
    )
    others = [line for line in log.read_text().splitlines() if line.strip()]
    assert [line for line in others if not isinstance(json.loads(line), dict)] == []
