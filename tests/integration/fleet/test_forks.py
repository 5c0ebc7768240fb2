"""Runs are forked and retried on a fleet: no model is asked again for what is taken over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cantata.client.client import EmbeddedClient
from cantata.client.runs import ChainRun, TurnRun
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.definitions import Router, Team
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from cantata.values import JsonValue
from tests.integration.fleet.agent_stage import AgentStage, agent, call

PATIENCE_S = 40.0


@pytest.fixture
def asked(models: ScriptedModels) -> Callable[[], list[str]]:
    """The prompts that came since the test began."""
    models.script([])
    before = len(models.journal())
    return lambda: [str(line["text"]) for line in models.journal()[before:]]


def finished(run: TurnRun | ChainRun) -> Any:
    result = run.result(PATIENCE_S)
    assert result.status == "succeeded", result
    return result


def row_of_agents(client: EmbeddedClient) -> ChainRun:
    """Three agents, one after the other: each is given what the one before said, and x."""
    nodes = [
        {
            "node_id": "one",
            "kind": "agent",
            "name": "ann",
            "input_map": {"input": "join(' ', ['one', x])"},
            "next_node": "two",
        },
        {
            "node_id": "two",
            "kind": "agent",
            "name": "bob",
            "input_map": {"input": "join(' ', [one, 'two', x])"},
            "next_node": "three",
        },
        {"node_id": "three", "kind": "agent", "name": "cleo", "input_map": {"input": "join(' ', [two, 'three', x])"}},
    ]
    return client.submit_chain({"nodes": nodes, "entry_node": "one", "initial_input": {"x": "old"}})


def test_a_fork_asks_no_model_for_what_is_upstream(
    client: EmbeddedClient, models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    models.script([{"match": "^ann", "reply": "A"}, {"match": "^bob", "reply": "B"}, {"match": "^cleo", "reply": "C"}])
    source = row_of_agents(client)
    finished(source)

    fork = client.fork(source.run_id, "two", changes={"input.x": "new"})
    response = finished(fork)

    assert asked() == [
        "ann <one old>",
        "bob <A two old>",
        "cleo <B three old>",
        "bob <A two new>",
        "cleo <B three new>",
    ]
    assert response.outputs == {"one": "A", "two": "B", "three": "C"}
    assert (response.nodes_run, response.usage.model_calls) == (2, 2)
    record = fork.record()
    assert isinstance(fork, ChainRun)
    assert record.labels == {"forked_from": source.run_id, "forked_at": "two"}
    assert fork.request.initial_input == {"x": "new"}
    assert source.record().labels == {}


def test_the_same_key_gives_the_same_fork(client: EmbeddedClient) -> None:
    source, other = row_of_agents(client), row_of_agents(client)
    finished(source)
    finished(other)

    first, again = (client.fork(source.run_id, "two", idempotency_key="k") for _ in range(2))

    assert first.run_id == again.run_id
    another = client.fork(other.run_id, "two", idempotency_key="k")
    assert another.run_id != first.run_id
    finished(first)
    finished(another)


def test_a_retry_asks_only_for_what_failed(
    client: EmbeddedClient, models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    models.script([{"match": "^bob", "status": 400, "times": 1}, {"reply": "said"}])
    source = row_of_agents(client)
    assert source.result(PATIENCE_S).status == "failed"

    retried = client.retry(source.run_id)

    assert finished(retried).final_output == "said"
    assert source.record().retried_as == retried.run_id
    assert [prompt.partition(" ")[0] for prompt in asked()] == ["ann", "bob", "bob", "cleo"]
    with pytest.raises(ConfigError, match="left nothing to retry: its status is 'succeeded'"):
        client.retry(retried.run_id)


def test_finished_rounds_of_an_agent_with_tools_stand(stage: AgentStage) -> None:
    stage.script(
        {"after_tools": 0, "tool_calls": [call("price", item="tea")]},
        {"after_tools": 1, "status": 400, "times": 1},
        {"reply": "It is 3."},
    )
    client = stage.client(agent(tools=["price"]))
    source = client.submit_turn("What is tea?", agent="it")
    assert source.result(PATIENCE_S).status == "failed"

    retried = client.retry(source.run_id)

    assert finished(retried).output == "It is 3."
    assert len(stage.requests()) == 3
    assert [message["role"] for message in stage.messages()] == ["user", "assistant", "tool"]
    anew = client.fork(retried.run_id, "it", changes={"input": "What is it?"})
    finished(anew)
    assert stage.requests()[3]["text"] == "What is it?"


def test_a_member_of_a_pipeline_is_asked_again_alone(
    client: EmbeddedClient, models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    source = client.submit_turn("hello", team="row")
    finished(source)

    finished(client.fork(source.run_id, "cleo"))

    assert [prompt.partition(" ")[0] for prompt in asked()] == ["ann", "bob", "cleo", "cleo"]


def test_a_router_is_not_asked_again(
    client: EmbeddedClient, models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    models.script([{"match": "^Route", "reply": '{"chosen_agent": "bob"}'}, {"reply": "said"}])
    router = Router(models=["openai/gpt-4o-mini"], decision_prompt_template="Route {user_input}")
    team = Team(mode="router", agents=["ann", "bob"], router=router)
    routing = client.with_definitions(client.definitions.model_copy(update={"teams": {"routed": team}}))
    source = routing.submit_turn("hello", team="routed")
    finished(source)

    anew = finished(client.fork(source.run_id, "bob"))

    assert (anew.output, anew.agents) == ("said", ["bob"])
    assert [prompt.partition(" ")[0] for prompt in asked()] == ["Route", "bob", "bob"]


def test_items_of_a_map_that_are_done_stand(client: EmbeddedClient, tmp_path: Path) -> None:
    items: list[dict[str, JsonValue]] = [
        {"journal": str(tmp_path / name), "times": times} for name, times in (("a", 1), ("b", 2), ("c", 1))
    ]
    nodes = [
        {"node_id": "map", "kind": "map", "items_path": "items", "map_node": "each", "max_concurrency": 1},
        {
            "node_id": "each",
            "kind": "tool",
            "name": "fail_until",
            "input_map": {"journal": "item.journal", "times": "item.times"},
        },
    ]
    source = client.submit_chain({"nodes": nodes, "entry_node": "map", "initial_input": {"items": items}})
    assert source.result(PATIENCE_S).status == "failed"

    response = finished(client.retry(source.run_id))

    assert response.final_output == [1, 2, 1]
    assert [len((tmp_path / name).read_text().splitlines()) for name in "abc"] == [1, 2, 1]


def test_what_does_not_fit_is_told_before_anything_runs(client: EmbeddedClient, asked: Callable[[], list[str]]) -> None:
    source = client.submit_turn("hello", agent="ann")
    finished(source)

    for from_step, changes, message in (
        ("anne", {}, "has no step 'anne'; did you mean 'ann'"),
        ("ann", {"input.x": 1}, "of a turn only 'input', its text, can"),
        ("ann", {"input": 1}, "the input of a turn is a text, not 1"),
        ("ann", {"input": " "}, "the text is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            client.fork(source.run_id, from_step, changes=changes)
    with pytest.raises(UnknownRunError):
        client.fork("nobody", "ann")
    assert len(asked()) == 1


def test_the_commands(client: EmbeddedClient, monkeypatch: pytest.MonkeyPatch, asked: Callable[[], list[str]]) -> None:
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    source = row_of_agents(client)
    finished(source)
    run = CliRunner().invoke

    made = run(
        submit,
        [
            "runs",
            "fork",
            source.run_id,
            "--from",
            "three",
            "--set",
            "input.x=new",
            "--set",
            "input.y.z=5",
            "--detach",
            "--json",
        ],
    )
    fork_id = json.loads(made.stdout)["run_id"]
    finished(client.run(fork_id))

    assert client.run(fork_id).record().request.count('"y":{"z":5}') == 1
    shown = run(submit, ["runs", "show", fork_id])
    assert f"forked from run {source.run_id} at step 'three'" in shown.stderr
    assert json.loads(run(submit, ["runs", "show", fork_id, "--json"]).stdout)["labels"]["forked_from"] == source.run_id
    refused = run(submit, ["runs", "retry", fork_id])
    assert refused.exit_code != 0
    assert "left nothing to retry" in refused.stderr
    again = run(submit, ["runs", "fork", fork_id, "--from", "three"])
    assert again.exit_code == 0, again.output
    assert len(asked()) == 5
