"""Workflows in Python with real workers: what their code gives, what it raises, and what is refused."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cantata.client.async_client import AsyncClient
from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.errors import ConfigError, RunError, UnknownRunError
from cantata.flows.wire import ChainResponse
from tests.integration.workflows import desk
from tests.integration.workflows.conftest import HERE, PATIENCE_S, definitions
from tests.waiting import until


def result(client: Client, name: str, **given: Any) -> Any:
    """The result of a workflow."""
    return client.submit_workflow(name, given).result(PATIENCE_S).raise_for_status().final_output


def error(client: Client, name: str, **given: Any) -> str:
    """The message with which a workflow fails."""
    with pytest.raises(RunError) as raised:
        result(client, name, **given)
    return str(raised.value)


def states(run: ChainRun) -> dict[str, str]:
    """The states of its steps."""
    return {step_id: step.state for step_id, step in run.record().steps.items()}


def test_awaits_in_a_row(client: Client) -> None:
    assert result(client, "row", steps=12, start=5) == 17


def test_a_workflow_that_gives_no_command(client: Client) -> None:
    assert result(client, "row", steps=0) == 0


def test_its_function_may_name_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    run = client.submit_workflow(importlib.import_module("desk").row, {"steps": 2})

    assert run.result(PATIENCE_S).final_output == 2


def test_the_same_key_gives_the_same_run(client: Client) -> None:
    runs = [client.submit_workflow("row", {"steps": 1}, idempotency_key="once").run_id for _ in range(2)]

    assert len(set(runs)) == 1


def test_a_gather_waits_once_for_all(client: Client) -> None:
    run = client.submit_workflow("fan", {"width": 50})

    assert run.result(PATIENCE_S).final_output == [number + 1 for number in range(50)]
    advances = [step_id for step_id, step in run.record().steps.items() if step.spec.kind == "workflow.advance"]
    assert len(advances) == 2, "one gives all commands, one gets all outcomes"


def test_constructs_of_asyncio(client: Client) -> None:
    assert result(client, "asyncio_fan") == [[2, 3, 4], [12, 13]]


def test_steps_in_finally_are_executed_once(client: Client, journal: Path) -> None:
    before = len(journal.read_text().splitlines())

    assert result(client, "tidy") == [2, 41, 101]
    assert sorted(journal.read_text().splitlines()[before:]) == ["add 1 1", "add 100 1", "add 40 1"]


def test_code_that_catches_all_there_is(client: Client) -> None:
    assert result(client, "swallows") == [1, 2, 3]


def test_code_that_ends_its_process_fails_its_run(client: Client) -> None:
    assert re.search(
        r"the workflow \(at \S+:\d+\) raised SystemExit: 3, which is no Exception", error(client, "leaves")
    )


def test_queues_and_locks_between_tasks(client: Client) -> None:
    assert result(client, "synchronized") == [["a", "b", "c", "d"], [2, 3, 4, 5], [2, 3]]


def test_values_may_be_changed_in_place(client: Client) -> None:
    assert result(client, "changes_values", items=[0, 1, 2]) == [1, 2, 0, 1, 2]


def test_a_fork_has_the_id_and_the_chance_of_its_source(client: Client) -> None:
    run = client.submit_workflow("unique", {})
    key = run.result(PATIENCE_S).final_output

    fork = client.fork(run.run_id, "unique/1.add")
    assert isinstance(fork, ChainRun)

    assert fork.result(PATIENCE_S).raise_for_status().final_output == key
    assert isinstance(key, list)
    assert key[0] == run.run_id


def test_callbacks_of_commands_wake_the_workflow(client: Client) -> None:
    assert result(client, "calls_back") == "cancelled"


def test_a_command_that_is_over_is_done_whoever_awaits_it(client: Client) -> None:
    assert result(client, "polls") in range(1, 50)


@pytest.mark.slow("a time-out of the workflow must pass")
def test_what_the_code_gave_up_is_closed_at_once(client: Client, journal: Path) -> None:
    run = client.submit_workflow("gives_up", {})
    waits = until(
        lambda: [step for step in states(run) if step.endswith("wait/approve")][1:], "the second wait", PATIENCE_S
    )
    until(lambda: states(run)[waits[0]] == "waiting_signal", "the second wait", PATIENCE_S)

    assert [item.step for item in client.inbox() if item.run_id == run.run_id] == waits
    ended = sorted(step.rpartition(".")[2] for step, state in states(run).items() if state == "skipped")
    assert ended == ["add", "doze", "wait/approve"]
    assert run.signal("approve", "yes") == "taken"

    assert run.result(PATIENCE_S).final_output == ["yes", True, True]
    assert "add 950 1" not in journal.read_text().splitlines()


@pytest.mark.slow("a time-out of the workflow must pass")
def test_a_child_that_the_code_gave_up_is_stopped_with_all_that_it_began(client: Client) -> None:
    run = client.submit_workflow("drops_a_child", {})
    until(lambda: any(step.endswith("wait/after") for step in states(run)), "the wait behind it", PATIENCE_S)

    (left,) = [item.step for item in client.inbox() if item.run_id == run.run_id]
    assert left.endswith("wait/after")
    found = states(run)
    assert {state for step, state in found.items() if "wait/inside" in step or step.endswith("doze")} == {"skipped"}
    assert [state for step, state in found.items() if "waits_busily" in step and state not in ("done", "skipped")] == []
    assert run.signal("inside", 1) == "kept", "nobody took it: it is for a wait to come"
    assert run.signal("after", "yes") == "taken"
    assert run.result(PATIENCE_S).final_output == "yes"


@pytest.mark.slow("a time-out of the workflow must pass")
def test_a_gather_that_is_given_up_is_cancelled(client: Client, journal: Path) -> None:
    assert result(client, "hurried_gather") == "given up"
    assert not {"add 901 1", "add 902 1"} & set(journal.read_text().splitlines())


def test_failures_are_caught_where_they_are_awaited(client: Client) -> None:
    assert result(client, "caught") == ["tool_error", "desk:fail raised ValueError: one", "StepError", "2"]


def test_a_failure_that_is_not_caught_names_the_line(client: Client) -> None:
    assert "desk:fail raised ValueError: not caught (at desk.py:" in error(client, "uncaught")


def test_an_error_of_its_own_code_names_the_line(client: Client) -> None:
    assert "KeyError: 'pen' (at desk.py:" in error(client, "broken", order={"item": "pen"})


def test_children_of_all_kinds(client: Client) -> None:
    *values, failure = result(client, "parent")

    assert values == [7, 2, 3, "Paris"]
    assert failure.startswith("desk:fail raised ValueError: not caught")


def test_chance_and_time_are_the_same_in_each_replay(client: Client) -> None:
    random, drawn, at, later = result(client, "values")

    assert 0 <= random < 1
    assert random != later
    assert drawn.count("-") == 4
    assert at > 1e9


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("row", {"stps": 3}, "the input of workflow 'row' lacks 'steps'; it takes steps, start"),
        ("row", {"steps": 1, "more": 2}, "the input of workflow 'row' has 'more' besides; it takes steps, start"),
        ("row", {"steps": "many"}, "the input of workflow 'row': steps: Input should be a valid integer"),
        ("stuck", {}, "waits for something that no step will give (at desk.py:"),
        (
            "reads_a_socket",
            {},
            "a workflow has no I/O and no threads of its own (create_connection): do this in a function",
        ),
        ("misspelt", {}, "the configuration has no tool 'ad'; did you mean 'add'?"),
        ("not_json", {}, "an argument is not JSON"),
        ("group_fails", {}, "desk:fail raised ValueError: in a group (at desk.py:"),
        ("sleeps_badly", {"seconds": "inf"}, "wf.sleep takes a number of seconds, not inf"),
    ],
)
def test_what_cannot_be_is_told(client: Client, name: str, given: dict[str, Any], message: str) -> None:
    assert message in error(client, name, **given)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("file", "open '"), ("connection", "the look-up of a host"), ("socket", "a connection"), ("process", "subprocess"),
        ("system", "os.system"),
        pytest.param("thread", "a thread", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell of it")),
    ],
)  # fmt: skip
def test_io_that_asyncio_does_not_see_is_refused(client: Client, how: str, what: str) -> None:
    assert f"a workflow has no I/O and no threads of its own ({what}" in error(client, "opens", how=how)


def test_imports_log_lines_and_time_zones_are_no_io(client: Client, tmp_path: Path) -> None:
    assert result(client, "harmless", folder=str(tmp_path)) == ["colorsys", "Europe/Berlin"]
    assert "ValueError: logged" in (tmp_path / "log").read_text()


def test_code_that_never_waits_fails_with_its_line(client: Client) -> None:
    began = time.monotonic()
    message = error(client, "spins")

    assert "used 2 s of processor time" in message
    assert re.search(r"at desk\.py:\d+ → desk\.py:\d+\)", message)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert result(client, "row", steps=2) == 2, "its process was replaced"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rwo", "did you mean 'row'"),
        (desk.add, "no workflow with the function"),
        (lambda wf: None, "cannot be imported by a worker"),
    ],
)
def test_an_unknown_workflow_is_refused_at_once(client: Client, name: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        client.submit_workflow(name, {})


def test_the_first_of_two_ends_the_workflow_and_stops_the_other(client: Client, tmp_path: Path) -> None:
    run = client.submit_workflow("first", {"file": str(tmp_path / "go")})

    assert run.result(PATIENCE_S).raise_for_status().final_output == [1, 1, 6]
    assert states(run)["first/0.held"] == "skipped"
    (tmp_path / "go").touch()


@pytest.mark.parametrize(
    "value", [None, "", [], {}, "x" * 10_000_000], ids=["null", "empty", "list", "object", "10 MB"]
)
def test_values_of_all_sizes(client: Client, value: Any) -> None:
    assert result(client, "echo", value=value) == value


def test_code_that_tries_for_ever_gives_each_command_once(client: Client, journal: Path, tmp_path: Path) -> None:
    run = client.submit_workflow("stubborn", {"file": str(tmp_path / "go")})
    until(lambda: "start stubborn" in journal.read_text(), "the step")
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).final_output == "stubborn"
    assert journal.read_text().count("start stubborn") == 1


def test_an_asynchronous_client_starts_workflows(client: Client) -> None:
    async def main() -> ChainResponse:
        async with AsyncClient(client.redis_url, config=definitions()) as asynchronous:
            run = await asynchronous.submit_workflow("row", {"steps": 2})
            return await run.result(PATIENCE_S)

    assert asyncio.run(main()).final_output == 2


# Waits and time


def test_a_signal_is_what_a_wait_gives(client: Client) -> None:
    run = client.submit_workflow("approval", {})
    until(lambda: "waiting_signal" in states(run).values(), "the question")

    assert run.signal("approve", {"ok": True}) == "taken"

    assert run.result(PATIENCE_S).final_output == [{"ok": True}, 2]


def test_a_signal_may_come_before_the_wait(client: Client) -> None:
    run = client.submit_workflow("late_question", {})
    assert run.signal("approve", "early") in ("kept", "taken")

    assert run.result(PATIENCE_S).final_output == "early"


def test_a_wait_without_a_signal_gives_its_default(client: Client) -> None:
    run = client.submit_workflow("approval", {})
    until(lambda: "waiting_signal" in states(run).values(), "the question")
    client.stack.skip(90_000)  # type: ignore[attr-defined]

    assert run.result(PATIENCE_S).final_output == ["nobody", 2]


def test_hours_pass_in_all_ways_to_sleep(client: Client) -> None:
    run = client.submit_workflow("sleeper", {})
    for hours in (1, 1, 0.02):
        until(lambda: "waiting_signal" in states(run).values() or run.status() == "succeeded", "a sleep")
        client.stack.skip(hours * 3600)  # type: ignore[attr-defined]

    assert 7260 <= run.result(PATIENCE_S).raise_for_status().final_output < 7400  # type: ignore[operator]


def test_a_sleep_takes_no_signal_and_does_not_fail(client: Client) -> None:
    run = client.submit_workflow("sleeper", {})
    until(lambda: "waiting_signal" in states(run).values(), "a sleep")
    [sleep] = [step for step in run.record().steps if step.endswith(".sleep")]

    assert run.waiting_steps() == []
    with pytest.raises(UnknownRunError, match="waits for a signal; none waits now"):
        run.signal(sleep, None)
    assert "running" in {run.view().steps[sleep].state}
    assert run.view().steps[sleep].note.startswith("sleeps until 20")

    client.stack.skip(3600)  # type: ignore[attr-defined]
    until(lambda: run.view().steps[sleep].state == "done", "its end")
    run.cancel()


def test_a_signal_to_a_run_that_redis_does_not_have_says_that_it_is_unknown(client: Client) -> None:
    with pytest.raises(UnknownRunError, match="run '0123456789abcdef' is not known here"):
        ChainRun(client.engine, "0123456789abcdef").signal("nowhere", "x")


def test_a_cancelled_run_stops(client: Client, tmp_path: Path) -> None:
    run = client.submit_workflow("journey", {"file": str(tmp_path / "go")})
    until(lambda: "running" in states(run).values(), "the held step")
    run.cancel()
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).status == "cancelled"
    assert "running" not in states(run).values()


ITEMS = [{"what": "tea", "on": "2026-11-25", "amount": 7}, {"what": "car", "on": "2026-11-25", "amount": 70}]


def test_models_and_dataclasses_are_converted_on_the_way_to_a_function_and_back(client: Client) -> None:
    assert result(client, "report", items=ITEMS) == ["Item", "2026-11-25", 7]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"items": [{"what": "tea"}]}, "the input of workflow 'report': items[0].on: Field required"),
        (
            {"items": [], "mode": "wrong argument"},
            "the arguments of check_report: items[0].on: Input should be a valid date",
        ),
        (
            {"items": [], "mode": "wrong result"},
            "is not of the type that it declares: the result.items[0].on: Field",
        ),
    ],
)
def test_values_that_are_not_of_the_declared_type_are_refused_with_their_place(
    client: Client, given: Any, message: str
) -> None:
    assert message in error(client, "report", **given)
