"""Replays of runs that real workers executed, with the same and with changed code, prompts and configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import EmbeddedClient
from cantata.errors import ConfigError
from cantata.flows.definitions import Agent, Chain, Definitions
from cantata.flows.wire import ChainNode
from cantata.testing import Comparison, ScriptedModels, evaluate, replay
from tests.integration.fleet.agent_stage import HERE, MAIN, OTHER, PATIENCE_S, TOOLS, AgentStage, agent, call
from tests.integration.fleet.conftest import Journal, skip_pauses
from tests.waiting import until

Json = dict[str, Any]

PRICES = (
    {"match": "tea", "after_tools": 0, "tool_calls": [call("price", item="tea", count=2)]},
    {"match": "tea", "reply": "5 euros"},
)


def definitions(it: Agent, **more: Any) -> Definitions:
    return Definitions(folder=str(HERE), tools=dict(TOOLS), agents={"it": it}, **more)


def adding(*, b: int = 1, name: str = "add", **more: Any) -> list[Json]:
    """A chain that adds b to the input, then 10."""
    return [
        {
            "node_id": "one",
            "kind": "tool",
            "name": name,
            "input_map": {"a": "input.x"},
            "input": {"b": b},
            "next_node": "two",
        },
        {"node_id": "two", "kind": "tool", "name": "add", "input_map": {"a": "one"}, "input": {"b": 10}, **more},
    ]


def chain(nodes: list[Json]) -> Json:
    return {"nodes": nodes, "entry_node": nodes[0]["node_id"], "initial_input": {"x": 5}}


@pytest.fixture
def selling(stage: AgentStage) -> Json:
    """A recording of an agent that calls a tool."""
    stage.script(*PRICES)
    run = stage.start(agent(tools=["price"], system="You sell tea."), "tea for two?")
    assert run.result(PATIENCE_S).output == "5 euros"
    return document_of(run)


@pytest.fixture
def sums(client: EmbeddedClient) -> Json:
    """A recording of a chain of two tools."""
    run = client.with_definitions(definitions(agent())).submit_chain(chain(adding()))
    assert run.result(PATIENCE_S).final_output == 16
    return document_of(run)


def document_of(run: Any) -> Json:
    found: Json = json.loads("".join(run.export()))
    return found


def first_of(comparison: Comparison) -> tuple[str, str]:
    assert not comparison.same
    assert comparison.first is not None
    return comparison.first.step, comparison.first.part


@pytest.fixture
def asks_nobody(models: ScriptedModels) -> Callable[[], bool]:
    before = len(models.journal())
    return lambda: len(models.journal()) == before


# The same


def test_the_same_code_shows_no_difference_and_asks_nobody(selling: Json, asks_nobody: Callable[[], bool]) -> None:
    comparison = replay(selling, definitions=definitions(agent(tools=["price"], system="You sell tea.")))

    assert (comparison.same, comparison.differences, comparison.stopped) == (True, (), "")
    assert (comparison.now.status, comparison.now.output, comparison.now.usage) == (
        "succeeded",
        "5 euros",
        comparison.recorded.usage,
    )
    assert comparison.now.usage.model_calls == 2
    assert str(comparison) == f"run {selling['run']['id']}: no difference"
    assert asks_nobody()


def test_tools_are_not_called(client: EmbeddedClient, journal: Journal) -> None:
    node = {
        "node_id": "a",
        "kind": "tool",
        "name": "slow",
        "input": {"journal": str(journal.path), "mark": 1, "seconds": 0},
    }
    run = client.submit_chain({"nodes": [node], "entry_node": "a"})
    run.result(PATIENCE_S)

    comparison = replay(document_of(run), definitions=client.definitions)

    assert (comparison.same, comparison.now.output) == (True, 1)
    assert len(journal.of("start")) == 1


def test_a_run_with_retries_is_the_same_without_them(client: EmbeddedClient, journal: Journal) -> None:
    node = {
        "node_id": "a",
        "kind": "tool",
        "name": "fail_until",
        "retry": 2,
        "input": {"journal": str(journal.path), "times": 2},
    }
    run = client.submit_chain({"nodes": [node], "entry_node": "a"})
    skip_pauses(client, run)

    comparison = replay(document_of(run), definitions=client.definitions)

    assert (comparison.same, comparison.now.output) == (True, 2)


def test_a_failed_run_fails_as_it_did(client: EmbeddedClient, stage: AgentStage) -> None:
    stage.script({"status": 401, "reply": "no such key"})
    failing = client.submit_chain(chain(adding(name="fail")))
    lonely = stage.start(agent())
    assert (failing.result(PATIENCE_S).status, lonely.result(PATIENCE_S).status) == ("failed", "failed")

    for run, now in ((failing, client.definitions), (lonely, definitions(agent()))):
        comparison = replay(document_of(run), definitions=now)

        assert (comparison.same, comparison.now.status) == (True, "failed"), str(comparison)


def test_a_failure_that_the_chain_bears_takes_the_same_path(client: EmbeddedClient) -> None:
    nodes: list[Json] = [
        {"node_id": "one", "kind": "tool", "name": "fail", "on_error": "mend", "next_node": "two"},
        {"node_id": "two", "kind": "tool", "name": "echo", "input": {"text": "fine"}},
        {"node_id": "mend", "kind": "tool", "name": "echo", "input": {"text": "mended"}},
    ]
    run = client.submit_chain(chain(nodes))
    assert run.result(PATIENCE_S).outputs["mend"] == {"text": "mended"}

    assert replay(document_of(run), definitions=client.definitions).same


def test_loops_maps_branches_and_signals_are_replayed(client: EmbeddedClient) -> None:
    nodes: list[Json] = [
        {"node_id": "each", "kind": "map", "items_path": "input.items", "map_node": "one", "next_node": "ask"},
        {"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "item", "b": "index"}},
        {"node_id": "ask", "kind": "wait", "next_node": "more"},
        {
            "node_id": "more",
            "kind": "tool",
            "name": "add",
            "input_map": {"a": "ask", "b": "more || `1`"},
            "next_node": "again",
        },
        {
            "node_id": "again",
            "kind": "branch",
            "condition": "more < `30`",
            "true_node": "more",
            "false_node": "end",
            "max_iterations": 9,
        },
        {"node_id": "end", "kind": "tool", "name": "add", "input_map": {"a": "length(each)", "b": "more"}},
    ]
    run = client.submit_chain({"nodes": nodes, "entry_node": "each", "initial_input": {"items": list(range(30))}})
    assert run.signal("ask", 10) in ("taken", "kept")
    assert run.result(PATIENCE_S).final_output == 61

    comparison = replay(document_of(run), definitions=client.definitions)

    assert (comparison.same, comparison.now.output) == (True, 61), str(comparison)


@pytest.mark.parametrize("team", ["row", "all", "merged", "first"])
def test_teams_are_replayed(client: EmbeddedClient, stage: AgentStage, team: str) -> None:
    stage.script()
    run = client.submit_turn("hello", team=team)
    assert run.result(PATIENCE_S).status == "succeeded"

    comparison = replay(document_of(run), definitions=client.definitions)

    assert comparison.same, str(comparison)


def test_a_team_whose_synthesizer_failed_is_replayed(client: EmbeddedClient, stage: AgentStage) -> None:
    stage.script({"match": "^merge", "status": 401, "reply": "no such key"})
    run = client.submit_turn("hello", team="merged")
    result = run.result(PATIENCE_S)
    assert "the synthesizer failed" in result.warnings[0]

    comparison = replay(document_of(run), definitions=client.definitions)

    assert (comparison.same, comparison.now.output) == (True, result.output), str(comparison)


def test_a_structured_answer_and_its_corrections_are_replayed(client: EmbeddedClient, stage: AgentStage) -> None:
    stage.script({"reply": "none of these", "times": 1}, {"reply": {"pick": "b"}})
    run = client.submit_turn("a or b?", agent="picker")
    assert run.result(PATIENCE_S).output == {"pick": "b"}

    comparison = replay(document_of(run), definitions=client.definitions)

    assert (comparison.same, comparison.now.usage.model_calls) == (True, 2), str(comparison)


def test_calls_in_json_are_replayed(stage: AgentStage) -> None:
    asked = {"response": "wait", "mcp": {"tool": "price", "params": {"item": "tea"}}}
    stage.script({"reply": asked, "times": 1}, {"reply": {"response": "2.5"}})
    it = agent(tools=["price"], dialect="json")
    run = stage.start(it)
    assert run.result(PATIENCE_S).output == "2.5"

    comparison = replay(document_of(run), definitions=definitions(it))

    assert comparison.same, str(comparison)


def test_a_turn_of_a_session_sees_the_conversation_before_it(stage: AgentStage) -> None:
    stage.script()
    it = agent(history={"enabled": True})
    with stage.client(it) as client:
        runs = [client.submit_turn(text, agent="it", session="r1") for text in ("one", "two", "three")]
        for run in runs:
            run.result(PATIENCE_S)
        document = document_of(runs[1])
    assert [message["text"] for message in document["steps"][-1]["model_call"]["messages"]] == [
        "one",
        "echo: one",
        "two",
    ]

    comparison = replay(document, definitions=definitions(it))

    assert comparison.same, str(comparison)


# Changes


def test_a_changed_prompt_is_the_first_difference(selling: Json, asks_nobody: Callable[[], bool]) -> None:
    comparison = replay(selling, definitions=definitions(agent(tools=["price"], system="You sell coffee.")))

    assert first_of(comparison) == ("it", "prompt")
    assert comparison.first is not None
    assert (comparison.first.recorded, comparison.first.now) == ("You sell tea.", "You sell coffee.")
    assert "its prompt differs\n  recorded: You sell tea.\n  now:      You sell coffee." in str(comparison)
    assert comparison.now.output == "5 euros"
    assert asks_nobody()


def test_a_change_past_the_recorded_beginning_of_a_prompt_is_found(stage: AgentStage) -> None:
    stage.script()
    run = stage.start(agent(system="x" * 5000 + "tea"))
    run.result(PATIENCE_S)

    comparison = replay(document_of(run), definitions=definitions(agent(system="x" * 5000 + "rum")))

    assert first_of(comparison) == ("it", "prompt")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": OTHER}, "model"),
        ({"params": {"temperature": 0.5}}, "params"),
        ({"tools": ["price", "add"]}, "tools"),
    ],
)
def test_a_changed_request_is_the_first_difference(selling: Json, changes: Json, part: str) -> None:
    it = agent(**{"tools": ["price"], "system": "You sell tea.", **changes})

    assert first_of(replay(selling, definitions=definitions(it))) == ("it", part)


def test_changed_arguments_are_the_first_difference(sums: Json) -> None:
    comparison = replay(sums, definitions=definitions(agent()), request=chain(adding(b=2)))

    assert first_of(comparison) == ("one", "arguments")
    assert comparison.first is not None
    assert (comparison.first.recorded, comparison.first.now) == ({"a": 5, "b": 1}, {"a": 5, "b": 2})
    assert comparison.now.output == 16


def test_a_changed_chain_is_the_first_difference(sums: Json) -> None:
    more = replay(
        sums,
        definitions=definitions(agent()),
        request=chain([*adding(next_node="last"), {**adding()[1], "node_id": "last"}]),
    )
    less = replay(sums, definitions=definitions(agent()), request=chain([{**adding()[0], "next_node": None}]))
    other = replay(sums, definitions=definitions(agent()), request=chain(adding(name="echo")))

    assert (first_of(more), first_of(less), first_of(other)) == (("last", "graph"), ("two", "graph"), ("one", "graph"))
    assert (more.first and more.first.recorded, more.first and more.first.now) == (None, "tool.call add")
    assert (less.first and less.first.recorded, less.first and less.first.now) == ("tool.call add", None)
    assert "step 'last' is not in the recording" in more.stopped
    assert less.now.output == 6


def test_a_changed_condition_is_the_first_difference(client: EmbeddedClient) -> None:
    def branching(condition: str) -> Json:
        branch = {
            "node_id": "which",
            "kind": "branch",
            "condition": condition,
            "true_node": "two",
            "false_node": "three",
        }
        return chain([{**adding()[0], "next_node": "which"}, branch, adding()[1], {**adding()[1], "node_id": "three"}])

    run = client.submit_chain(branching("one > `5`"))
    assert run.result(PATIENCE_S).status == "succeeded"

    comparison = replay(document_of(run), definitions=client.definitions, request=branching("one > `6`"))

    assert first_of(comparison) == ("which", "output")
    assert "step 'three' is skipped in the recording" in comparison.stopped


def test_a_chain_of_the_configuration_runs_as_it_is_now(client: EmbeddedClient) -> None:
    def named(b: int) -> Definitions:
        return definitions(
            agent(), chains={"sum": Chain(entry_node="one", nodes=[ChainNode(**node) for node in adding(b=b)])}
        )

    run = client.with_definitions(named(1)).submit_chain("sum", initial_input={"x": 5})
    assert run.result(PATIENCE_S).final_output == 16
    document = document_of(run)

    assert replay(document, definitions=named(1)).same
    assert first_of(replay(document, definitions=named(3))) == ("one", "arguments")


def test_changed_code_is_the_first_difference(client: EmbeddedClient, stage: AgentStage, tmp_path: Path) -> None:
    stage.script()
    (tmp_path / "replayed_shout.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    it = agent(instructions=["{input}", {"function": "replayed_shout:shout"}])
    now = definitions(it).model_copy(update={"folder": str(tmp_path), "tools": {}})
    run = client.with_definitions(now).submit_turn("hello", agent="it")
    assert run.result(PATIENCE_S).output == "ECHO: HELLO"
    document = document_of(run)
    other = tmp_path / "other"
    other.mkdir()
    (other / "replayed_shout.py").write_text("def shout(text: str) -> str:\n    return text.upper() + '!'\n")

    same, changed = (
        replay(document, definitions=now),
        replay(document, definitions=now.model_copy(update={"folder": str(other)})),
    )

    assert same.same, str(same)
    assert first_of(changed)[1] == "output"
    assert changed.first is not None
    assert (changed.first.recorded, changed.first.now, changed.now.output) == (
        "ECHO: HELLO",
        "ECHO: HELLO!",
        "ECHO: HELLO!",
    )


def test_a_request_that_names_what_is_gone_is_a_difference(selling: Json) -> None:
    comparison = replay(selling, definitions=Definitions(agents={"other": Agent(model=MAIN)}))

    assert (first_of(comparison), comparison.now.status) == (("", "request"), "rejected")
    assert comparison.first is not None
    assert "'it'" in str(comparison.first.now)


def test_a_run_that_was_not_over_is_replayed_as_far_as_it_came(client: EmbeddedClient) -> None:
    nodes = [{**adding()[0], "next_node": "ask"}, {"node_id": "ask", "kind": "wait"}]
    run = client.submit_chain(chain(nodes))
    until(lambda: "ask" in run.record().steps and run.record().steps["ask"].state == "waiting_signal", "the wait")
    document = document_of(run)
    run.cancel()

    comparison = replay(document, definitions=client.definitions)

    assert (comparison.same, comparison.stopped) == (True, "a step waits, and its end is not recorded")


# Live


def test_a_live_model_is_asked_again_and_its_answer_is_compared(selling: Json, stage: AgentStage) -> None:
    it = agent(tools=["price"], system="You sell tea.")
    stage.script(PRICES[0], {"reply": "It is 5 euros."})

    equal = replay(selling, definitions=definitions(it), live={"model"})
    alike = replay(
        selling, definitions=definitions(it), live={"model"}, compare=lambda before, now: "5 euros" in str(now)
    )

    assert (equal.same, alike.same, alike.now.output) == (False, True, "It is 5 euros.")
    assert len(stage.requests()) == 6


def test_a_live_model_that_calls_a_tool_otherwise_ends_the_replay(selling: Json, stage: AgentStage) -> None:
    stage.script({"after_tools": 0, "tool_calls": [call("price", item="rum", count=2)]}, {"reply": "5 euros"})

    comparison = replay(
        selling, definitions=definitions(agent(tools=["price"], system="You sell tea.")), live={"model"}
    )

    assert not comparison.same
    assert 'price {"item": "rum", "count": 2}' in comparison.stopped


def test_a_folder_of_recordings_is_a_table(selling: Json, stage: AgentStage, tmp_path: Path) -> None:
    it = agent(tools=["price"], system="You sell tea.")
    stage.script(*PRICES)
    other = stage.start(it, "hello")
    other.result(PATIENCE_S)
    (tmp_path / "a.json").write_text(json.dumps(selling))
    (tmp_path / "b.json").write_text("".join(other.export()))
    stage.script(PRICES[0], {"match": "tea", "reply": "6 euros"})

    found = evaluate(tmp_path, definitions=definitions(it), live={"model"})

    lines = str(found).splitlines()
    assert list(found.changed) == ["a.json"]
    assert [line.split()[:2] for line in lines[:4]] == [
        ["recording", "answer"],
        ["a.json", "changed"],
        ["b.json", "same"],
        ["2", "runs"],
    ]
    assert (
        lines[1].split()[2:4]
        == [str(selling["run"]["usage"]["input_tokens"] + selling["run"]["usage"]["output_tokens"])] * 2
    )
    assert lines[5:] == ["a.json: its answer differs", "  recorded: 5 euros", "  now:      6 euros"]


def test_without_live_models_a_folder_is_compared_for_free(
    selling: Json, tmp_path: Path, asks_nobody: Callable[[], bool]
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(selling))

    assert evaluate(tmp_path, definitions=definitions(agent(tools=["price"], system="You sell tea."))).changed == {}
    assert asks_nobody()


# Faults


def test_what_is_no_recording_is_refused(tmp_path: Path, selling: Json) -> None:
    (tmp_path / "x.json").write_text("[1]")
    none = Definitions()

    with pytest.raises(ConfigError, match=r"x\.json: this is no recording"):
        replay(tmp_path / "x.json", definitions=none)
    with pytest.raises(ConfigError, match="cannot be read"):
        replay(tmp_path / "y.json", definitions=none)
    with pytest.raises(ConfigError, match="has version 7; this Cantata reads version 1"):
        replay({**selling, "version": 7}, definitions=none)
    with pytest.raises(ConfigError, match="not 'tools'"):
        replay(selling, definitions=none, live={"tools"})
    with pytest.raises(ConfigError, match="there are no recordings"):
        evaluate(tmp_path / "nowhere", definitions=none)
