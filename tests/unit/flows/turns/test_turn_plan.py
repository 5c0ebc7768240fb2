"""Turns become graphs: rows, fans and joins."""

from __future__ import annotations

import pytest

from cantata.flows.definitions import Agent, Chain, Defaults, Definitions, Extension, Synthesizer, Team
from cantata.flows.graph import Edge, Graph, Step, adopt
from cantata.flows.turns import agent_steps, turn_plan
from cantata.flows.turns.routing import RoutingRound, run_agent
from cantata.flows.wire import ChainNode, TurnRequest

AGENTS = {"a": Agent(), "b": Agent(retries=7), "two": Agent(instructions=["1 {input}", "2 {input}"])}
TEAMS = {
    "row": Team(mode="pipeline", agents=["a", "b", "a"]),
    "fan": Team(mode="broadcast", agents=["a", "two"], min_responses=1, deadline_s=5),
    "merged": Team(mode="broadcast", agents=["a", "b"], synthesizer=Synthesizer(prompt="{agent_responses}")),
    "later": Team(mode="router", agents=["a"]),
}
DEFINITIONS = Definitions(agents=AGENTS, teams=TEAMS, defaults=Defaults(team="row"))


def planned(**turn: str) -> Graph:
    return turn_plan.plan_turn(TurnRequest(text="hi", **turn), DEFINITIONS)  # type: ignore[arg-type]


def step(graph: Graph, step_id: str) -> Step:
    return next(s for s in graph.steps if s.id == step_id)


def test_a_pipeline_is_a_row_in_which_each_reads_the_one_before() -> None:
    graph = planned(team="row")

    assert [s.id for s in graph.steps] == ["a.1", "b", "a.2"]
    assert [s.reads["@text"] for s in graph.steps] == ["=@start", "a.1", "b"]
    assert graph.edges == (Edge(source="a.1", target="b"), Edge(source="b", target="a.2"))
    assert graph.terminals == ("a.2",)
    assert step(graph, "b").params["failure"] == "Pipeline failed at step 2 (b): "


def test_a_broadcast_is_a_fan_whose_failures_are_skipped_and_a_join() -> None:
    graph = planned(team="fan")

    join = step(graph, "@responses")
    assert (join.kind, join.quorum, join.deadline_s, join.decides) == ("team.collect", 1, 5, True)
    assert {edge.source for edge in graph.edges if edge.target == join.id} == {"a", "two"}
    assert {s.on_error for s in graph.steps if s.id != join.id} == {"skip"}


def test_a_synthesizer_is_a_task_of_the_agents_queue() -> None:
    join = step(planned(team="merged"), "@synthesizer")

    assert (join.kind, join.queue) == ("team.synthesize", "agents")


def test_an_agent_of_several_instructions_grows_a_row_with_the_time_and_tries_it_was_given() -> None:
    parent = step(planned(agent="two"), "two").model_copy(update={"retries": 9, "timeout_s": 2.0})

    fragment = adopt(agent_steps.expand_agent("two", DEFINITIONS, parent="two", spec=parent), "two", parent)

    assert [s.id for s in fragment.steps] == ["two/@1", "two/@2"]
    assert [s.reads["@text"] for s in fragment.steps] == ["=two", "two/@1"]
    assert {(s.retries, s.timeout_s) for s in fragment.steps} == {(9, 2.0)}
    assert fragment.exit == "two/@2"


def test_the_default_team_answers_turns_that_name_none() -> None:
    assert planned().terminals == ("a.2",)


def test_an_agent_whose_name_looks_numbered_is_not_taken_for_another_one() -> None:
    definitions = Definitions(
        agents={"a": Agent(), "a.2": Agent()},
        teams={
            "row": Team(mode="pipeline", agents=["a", "a", "a.2"]),
            "desk": Team(mode="router", agents=["a", "a.2"]),
        },
    )

    assert [s.id for s in turn_plan.plan_turn(TurnRequest(text="hi", team="row"), definitions).steps] == [
        "a.1",
        "a.2",
        "a.2.1",
    ]
    rounds = [RoutingRound("desk", "=@start", "=@start", number=number) for number in (1, 2)]
    ids = {run_agent(now, name, definitions, asked="=@start").steps[0].id for now in rounds for name in ("a", "a.2")}
    assert ids == {"a", "a.2", "a.2.1", "a.2.2"}


@pytest.mark.parametrize("kind", ["agent", "team", "workflow"])
def test_agents_of_a_further_format_cannot_be_named(kind: str) -> None:
    definitions = Definitions(
        extension=Extension(kind="x.open", agents=["conductor", "helper"], first_agent="conductor")
    )

    (fault,) = turn_plan.check_turn(TurnRequest.model_validate({"text": "hi", kind: "helper"}), definitions)

    assert fault.message == f"no {kind} can be named here: with this configuration, a turn starts at 'conductor'"


def test_a_turn_without_a_receiver_names_the_workflows() -> None:
    chain = Chain(nodes=[ChainNode(node_id="a", kind="agent", name="a")], entry_node="a")
    definitions = Definitions(agents={"a": Agent(), "b": Agent()}, chains={"support": chain, "triage": chain})

    (fault,) = turn_plan.check_turn(TurnRequest(text="hi"), definitions)

    assert "name a team or an agent, or a workflow: support, triage; or set" in fault.message
