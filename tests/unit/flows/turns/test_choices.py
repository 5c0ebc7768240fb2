"""What a router's reply says."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.definitions import Strategy
from cantata.flows.turns.choices import DEFAULT_TEMPLATES, REPLY_FORMS, RouterDecision, agent_details, decision_of
from cantata.values import JsonValue

AGENTS = ("ann", "bob")
STRATEGIES: tuple[Strategy, ...] = ("single_agent_dispatch", "static_plan", "dynamic_decomposition")


@pytest.mark.parametrize(
    ("strategy", "reply", "choice"),
    [
        ("single_agent_dispatch", {"chosen_agent": "ann"}, RouterDecision(("ann",))),
        ("single_agent_dispatch", '{"chosen_agent": "ann", "refined_query": "x"}', RouterDecision(("ann",), "x")),
        ("single_agent_dispatch", {"chosen_agent": "ann", "refined_query": None}, RouterDecision(("ann",))),
        ("single_agent_dispatch", {"chosen_agent": "ann", "refined_query": " "}, RouterDecision(("ann",))),
        ("single_agent_dispatch", {"chosen_agent": "ann", "refined_query": {"a": 1}}, RouterDecision(("ann",))),
        ("single_agent_dispatch", {"chosen_agent": "ann", "refined_query": 5}, RouterDecision(("ann",))),
        ("static_plan", {"plan": ["bob"], "initial_input": {"a": 1}}, RouterDecision(("bob",), '{"a": 1}')),
        ("single_agent_dispatch", " bob\n", RouterDecision(("bob",))),
        ("single_agent_dispatch", '```json\n{"chosen_agent": "bob"}\n```', RouterDecision(("bob",))),
        (
            "single_agent_dispatch",
            '{"chosen_agent": "ann"} or rather {"chosen_agent": "bob"}',
            RouterDecision(("bob",)),
        ),
        ("static_plan", {"plan": ["bob", "ann", "bob"]}, RouterDecision(("bob", "ann", "bob"))),
        ("static_plan", {"plan": ["bob"], "initial_input": "x"}, RouterDecision(("bob",), "x")),
        (
            "dynamic_decomposition",
            {"next_action": "call_agent", "agent_name": "ann", "agent_input": "x"},
            RouterDecision(("ann",), "x"),
        ),
        ("dynamic_decomposition", {"next_action": "call_agent", "agent_name": "ann"}, RouterDecision(("ann",))),
        ("dynamic_decomposition", {"next_action": "final_answer", "final_answer": "x"}, RouterDecision(answer="x")),
        ("dynamic_decomposition", {"next_action": "final_answer", "final_answer": ""}, RouterDecision(answer="")),
        ("dynamic_decomposition", {"next_action": "final_answer", "final_answer": [1]}, RouterDecision(answer="[1]")),
    ],
)
def test_a_reply_that_can_be_used(strategy: Strategy, reply: JsonValue, choice: RouterDecision) -> None:
    assert decision_of(reply, strategy, AGENTS) == choice


@given(
    st.sampled_from(STRATEGIES),
    st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5)
    | st.text(),
)
def test_whatever_is_replied_nobody_else_is_chosen(strategy: Strategy, reply: JsonValue) -> None:
    with suppress(ValueError):
        assert set(decision_of(reply, strategy, AGENTS).agents) <= set(AGENTS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_asked_without_a_template_tells_the_form_of_the_reply(strategy: Strategy) -> None:
    assert DEFAULT_TEMPLATES[strategy].endswith(REPLY_FORMS[strategy])
    assert "{agent_details}" in DEFAULT_TEMPLATES[strategy]
    for line in REPLY_FORMS[strategy].split(" or {"):
        json.loads(line.replace(", ...", "") if line.startswith("{") else "{" + line)


def test_agents_are_listed_with_what_they_are_good_at() -> None:
    assert agent_details({"ann": "adds", "bob": "bakes"}) == "- ann: adds\n- bob: bakes"
