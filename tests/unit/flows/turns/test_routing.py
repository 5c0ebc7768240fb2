"""Teams that choose their agents during the turn: the steps of a round, and those that follow it."""

from __future__ import annotations

import pytest

from cantata.flows.definitions import Agent, Definitions, Router, Team, TeamRule
from cantata.flows.graph import Graph, Step
from cantata.flows.turns import routing
from cantata.flows.turns.routing import RoutingRound

RULE = TeamRule(match="x", agent="ann")
TEAMS = {
    "asked": Team(mode="router", agents=["ann", "bob"], router=Router()),
    "ruled": Team(mode="router", agents=["ann", "bob"], rules=[RULE], default_agent="bob"),
    "coded": Team(
        mode="router",
        agents=["ann", "bob"],
        rules=[TeamRule(function="m:f")],
        router=Router(function="m:g", timeout_s=9),
    ),
}
DEFINITIONS = Definitions(agents={"ann": Agent(), "bob": Agent()}, teams=TEAMS)


def now(team: str, **fields: object) -> RoutingRound:
    return RoutingRound.of({"team": team, "round": {"text": "t", "request": "r", **fields}})  # type: ignore[dict-item]


def shape(graph: Graph) -> list[tuple[str, str]]:
    return [(step.id, step.kind) for step in graph.steps]


def last(graph: Graph) -> Step:
    return graph.steps[-1]


@pytest.mark.parametrize(
    ("team", "steps"),
    [
        ("asked", [("@router", "team.ask"), ("@route", "team.route")]),
        ("ruled", [("@rules", "team.rules")]),
        ("coded", [("@rules", "team.rules")]),
    ],
)
def test_rules_come_before_a_router(team: str, steps: list[tuple[str, str]]) -> None:
    graph, answer = routing.begin_routing(team, TEAMS[team], DEFINITIONS, "", "=@start")

    assert shape(graph) == steps
    assert (answer, graph.exit) == (steps[-1][0], None)


def test_rules_with_code_run_where_code_does_and_others_are_decided_in_place() -> None:
    of_code = last(routing.next_routing_round(now("coded"), DEFINITIONS))
    plain = last(routing.next_routing_round(now("ruled"), DEFINITIONS))

    assert (of_code.queue, of_code.timeout_s, of_code.decides) == ("tools", routing.RULES_S, False)
    assert (plain.queue, plain.timeout_s, plain.decides) == ("coordinator", None, True)


def test_a_function_may_be_the_router() -> None:
    asking = routing.ask_router(now("coded"), DEFINITIONS).steps[0]

    assert (asking.kind, asking.queue, asking.retries, asking.timeout_s) == ("team.call", "tools", 0, 9)


def test_a_router_without_a_rule_or_a_default_agent_is_the_default_model() -> None:
    assert routing.asks_router(Team(mode="router", agents=["ann"]))
    assert not routing.asks_router(TEAMS["ruled"])


def test_a_router_that_is_asked_again_gets_its_reply_and_what_is_wrong_with_it() -> None:
    graph = routing.ask_router(now("asked", again=True, last="before"), DEFINITIONS, fault="no JSON", said="@router")

    asking, route = graph.steps
    assert (asking.id, route.id, graph.exit) == ("@router.again", "@route.again", "@route.again")
    assert asking.reads == {"@text": "t", "@request": "r", "@last": "before", "@reply": "@router"}
    assert asking.params["fault"] == "no JSON"
    assert route.reads == {"@text": "t", "@reply": "@router.again", "@last": "before"}


def test_the_round_that_a_step_belongs_to_is_in_its_parameters() -> None:
    later = now("asked", number=3, prefix="p/")

    assert RoutingRound.of(later.params) == later
    assert later.id("@rules") == "p/@rules.3"


def test_an_agent_that_is_chosen_answers_and_its_prefix_is_read() -> None:
    graph = routing.run_agent(now("asked", prefix="p/"), "ann", DEFINITIONS, asked="@route", is_default=True)

    assert shape(graph) == [("p/ann", "agent.turn"), ("p/@reply.ann", "team.reply")]
    assert graph.steps[0].params["failure"] == "Sorry, agent ann encountered an error: "
    assert last(graph).reads == {"@text": "p/ann"}
    assert last(graph).params["is_default"] is True
    assert graph.exit == "p/@reply.ann"


def test_a_plan_goes_on_from_its_position() -> None:
    graph = routing.run_plan(now("asked"), ["ann", "bob"], DEFINITIONS, asked="1.ann", position=1, run=2)

    assert shape(graph) == [("2.bob.2", "agent.turn"), ("@reply.2.bob.2", "team.reply")]
    assert graph.steps[0].reads == {"@text": "1.ann"}
    assert {"plan": ["ann", "bob"], "position": 1, "run": 2}.items() <= last(graph).params.items()


def test_the_first_run_of_a_plan_s_agent_has_no_number_and_a_second_question_to_the_router_is_over_with_it() -> None:
    again = now("asked", again=True)

    assert shape(routing.run_plan(again, ["ann"], DEFINITIONS, asked="@route.again"))[0] == ("1.ann", "agent.turn")
    assert "again" not in str(last(routing.run_agent(again, "ann", DEFINITIONS, asked="@route.again")).params)


def test_a_rotation_begins_with_a_step_that_chooses_and_ends_with_the_agent() -> None:
    graph, answer = routing.begin_round_robin("asked", TEAMS["asked"], DEFINITIONS, "p/", "=@start")
    chosen = routing.run_next("asked", "bob", DEFINITIONS, prefix="p/", asked="=@start")

    assert (shape(graph), answer) == ([("p/@next", "team.next")], "p/@next")
    assert (shape(chosen), chosen.exit) == ([("p/bob", "agent.turn")], "p/bob")
