"""Recordings of runs: what `submit runs export` writes of runs that real workers executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cantata.client.client import EmbeddedClient
from cantata.client.runs import Run
from cantata.surfaces.cli.main import submit
from tests.integration.fleet.agent_stage import MAIN, PATIENCE_S, AgentStage, agent, call
from tests.integration.fleet.conftest import Journal, skip_pauses
from tests.waiting import until

Json = dict[str, Any]


def document_of(run: Run) -> Json:
    found: Json = json.loads("".join(run.export()))
    return found


def steps_of(run: Run) -> dict[str, Json]:
    return {step["step"]: step for step in document_of(run)["steps"]}


def test_a_recording_has_the_request_the_definitions_and_each_call(stage: AgentStage) -> None:
    stage.script({"after_tools": 0, "tool_calls": [call("price", "id-1", item="tea", count=2)]}, {"reply": "5 euros"})
    run = stage.start(agent(tools=["price"], system="You sell tea."), "How much are two?")
    assert run.result(PATIENCE_S).output == "5 euros"

    document = document_of(run)

    head = document["run"]
    assert (document["format"], document["version"]) == ("cantata.run", 1)
    assert (head["id"], head["kind"], head["status"], head["is_over"], head["output"]) == (
        run.run_id,
        "turn",
        "succeeded",
        True,
        "5 euros",
    )
    assert (head["request"], head["usage"]["model_calls"]) == ({"text": "How much are two?", "agent": "it"}, 2)
    assert document["definitions"]["agents"]["it"]["system"] == "You sell tea."
    first, tool, last = (step for step in document["steps"] if "model_call" in step or "tool_call" in step)
    asked = first["model_call"]
    assert [message["text"] for message in asked["messages"]] == ["You sell tea.", "How much are two?"]
    assert (asked["model"], asked["request"]["model"], asked["tool_calls"][0]["arguments"]) == (
        MAIN,
        MAIN,
        {"item": "tea", "count": 2},
    )
    assert tool["tool_call"] == {"tool": "price", "arguments": {"item": "tea", "count": 2}}
    assert (tool["step"], tool["output"]) == (f"{first['step']}/t0", {"item": "tea", "total": 5.0})
    assert first["expanded"] == [tool["step"], last["step"]]
    assert (last["model_call"]["reply"], last["usage"]["model_calls"]) == ("5 euros", 1)
    assert [each["end"] for each in last["attempts"]] == ["done"]


def test_each_attempt_is_recorded_with_its_error(client: EmbeddedClient, journal: Journal) -> None:
    node = {
        "node_id": "a",
        "kind": "tool",
        "name": "fail_until",
        "retry": 2,
        "input": {"journal": str(journal.path), "times": 2},
    }
    run = client.submit_chain({"nodes": [node], "entry_node": "a"})
    skip_pauses(client, run)

    step = steps_of(run)["a"]

    assert (step["state"], step["output"], step["error"]) == ("done", 2, None)
    assert [(each["attempt"], each["end"]) for each in step["attempts"]] == [(1, "retry"), (2, "done")]
    assert step["attempts"][0]["error"]["message"] == "fleet_tools:fail_until raised RuntimeError: call 1 fails"
    assert step["attempts"][0]["ended_at_ms"] >= step["attempts"][0]["started_at_ms"]


def test_a_failed_run_is_recorded_with_what_it_left_undone(client: EmbeddedClient) -> None:
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "fail", "next_node": "b"},
        {"node_id": "b", "kind": "tool", "name": "echo"},
    ]
    run = client.submit_chain({"nodes": nodes, "entry_node": "a"})
    assert run.result(PATIENCE_S).status == "failed"

    document = document_of(run)

    a, b = (next(step for step in document["steps"] if step["step"] == name) for name in "ab")
    assert (document["run"]["status"], document["run"]["output"], document["run"]["error"]["step"]) == (
        "failed",
        None,
        "a",
    )
    assert (a["state"], a["error"]["code"], b["state"], b["attempts"], "tool_call" in b) == (
        "failed",
        "tool_error",
        "skipped",
        [],
        False,
    )


def test_arguments_in_a_loop_are_those_of_their_round(client: EmbeddedClient) -> None:
    nodes: list[Json] = [
        {
            "node_id": "one",
            "kind": "tool",
            "name": "add",
            "input_map": {"a": "input.start", "b": "more || `1`"},
            "next_node": "more",
        },
        {
            "node_id": "more",
            "kind": "tool",
            "name": "add",
            "input_map": {"a": "one", "b": "`10`"},
            "next_node": "again",
        },
        {"node_id": "again", "kind": "branch", "condition": "more < `60`", "true_node": "one", "max_iterations": 9},
    ]
    run = client.submit_chain({"nodes": nodes, "entry_node": "one", "initial_input": {"start": 5}})
    assert run.result(PATIENCE_S).status == "succeeded", run.result().error

    found = [step for step in document_of(run)["steps"] if "tool_call" in step]

    rounds = [
        (step["tool_call"]["arguments"]["a"], step["tool_call"]["arguments"]["b"], step["output"]) for step in found
    ]
    assert rounds == [
        (5, 1, 6),
        (6, 10, 16),
        (5, 16, 21),
        (21, 10, 31),
        (5, 31, 36),
        (36, 10, 46),
        (5, 46, 51),
        (51, 10, 61),
    ]


def test_items_of_a_map_have_their_own_arguments(client: EmbeddedClient) -> None:
    nodes: list[Json] = [
        {"node_id": "each", "kind": "map", "items_path": "input.items", "map_node": "one"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item", "b": "index"}},
    ]
    run = client.submit_chain(
        {"nodes": nodes, "entry_node": "each", "initial_input": {"items": [10 * n for n in range(120)]}}
    )
    assert run.result(PATIENCE_S).status == "succeeded"

    steps = steps_of(run)

    items = [steps[f"each/{n}"] for n in range(120)]
    assert [step["tool_call"]["arguments"] for step in items] == [{"a": 10 * n, "b": n} for n in range(120)]
    assert [step["output"] for step in items] == [11 * n for n in range(120)]
    assert {f"each/{n}" for n in range(120)} <= set(steps["each"]["expanded"])


def test_a_recording_has_no_secrets(stage: AgentStage) -> None:
    stage.script({"after_tools": 0, "tool_calls": [call("echo", text="sk-test-secret-0123456789")]}, {"reply": "done"})
    run = stage.start(agent(tools=["echo"]), "my password: hunter2hunter2")
    assert run.result(PATIENCE_S).output == "done"

    text = "".join(run.export())

    assert "sk-test-secret" not in text
    assert "hunter2" not in text
    assert json.loads(text)["run"]["request"]["text"] == "my password: ***"


def test_a_turn_of_a_session_has_the_conversation_before_it(stage: AgentStage) -> None:
    with stage.client(agent()) as client:
        runs = [client.submit_turn(text, agent="it", session="recorded") for text in ("one", "two", "three")]
        for run in runs:
            run.result(PATIENCE_S)

        document = document_of(runs[1])

    assert [(entry["role"], entry["content"]) for entry in document["conversation"]] == [
        ("user", "one"),
        ("assistant", "echo: one"),
    ]


def test_the_command_prints_a_run_that_goes_on_and_says_so(
    client: EmbeddedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    run = client.submit_chain(
        {"nodes": [{"node_id": "ask", "kind": "wait", "input": {"prompt": "ok?"}}], "entry_node": "ask"}
    )
    until(lambda: run.record().steps.get("ask") and run.record().steps["ask"].state == "waiting_signal", "the wait")

    exported = CliRunner().invoke(submit, ["runs", "export", run.run_id])
    unknown = CliRunner().invoke(submit, ["runs", "export", "no-such-run"])

    document = json.loads(exported.stdout)
    assert (exported.exit_code, document["run"]["is_over"], document["steps"][-1]["state"]) == (
        0,
        False,
        "waiting_signal",
    )
    assert f"run {run.run_id} is waiting: this is the run so far" in exported.stderr
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "run 'no-such-run' is not known here" in unknown.stderr
    run.cancel()


def test_a_recording_is_written_in_pieces(client: EmbeddedClient, tmp_path: Path) -> None:
    nodes = [
        {"node_id": name, "kind": "tool", "name": "large", "input": {"megabytes": 1}, "next_node": after}
        for name, after in ("ab", "bc")
    ]
    run = client.submit_chain(
        {
            "nodes": [*nodes, {"node_id": "c", "kind": "tool", "name": "large", "input": {"megabytes": 1}}],
            "entry_node": "a",
        }
    )
    assert run.result(PATIENCE_S).status == "succeeded"

    with (tmp_path / "run.json").open("w") as file:
        file.writelines(run.export())

    assert len(json.loads((tmp_path / "run.json").read_text())["steps"]) == 4
    assert max(map(len, run.export())) < 1_100_000
