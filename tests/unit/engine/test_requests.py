"""A request is parsed once and checked once; with its text it becomes a run."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from cantata.config import chain_requests
from cantata.engine.engine import Engine
from cantata.engine.requests import CheckedChain, checked_chain, checked_schedule, checked_turn, workflow_request
from cantata.errors import ConfigError
from cantata.flows.chains import checks
from cantata.flows.definitions import Agent, Chain, Definitions, PythonWorkflow, Tool
from cantata.flows.schedules import Schedule
from cantata.flows.submission import AS_CONFIGURED, MAX_WORKFLOW_S, Submission
from cantata.flows.wire import ChainNode, ChainRequest, TurnRequest

DEFINITIONS = Definitions(
    agents={"clerk": Agent()},
    tools={"add": Tool(function="shop:add")},
    chains={"row": Chain(nodes=[ChainNode(node_id="a", kind="tool", name="add")], entry_node="a", timeout_s=7)},
    workflows={"flow": PythonWorkflow(function="shop:flow")},
)
REQUEST: dict[str, Any] = {
    "nodes": [{"node_id": "a", "kind": "tool", "name": "add", "input_map": {"text": "input.text"}}],
    "entry_node": "a",
    "webhooks": ["https://example.org/first"],
}
SUBMISSION = Submission(webhooks=("https://example.org/second",), timeout_s=9)


def engine() -> Engine:
    return Engine(cast(Any, None), cast(Any, None), DEFINITIONS)


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[tuple[Any, ...]]:
    """Return the list that gets the arguments of each call of a function; of a dump, if it is of the whole."""
    calls: list[tuple[Any, ...]] = []
    function: Callable[..., Any] = getattr(module, name)

    def count(*args: Any, **options: Any) -> Any:
        if "include" not in options:
            calls.append(args)
        return function(*args, **options)

    monkeypatch.setattr(module, name, count)
    return calls


def test_a_request_with_changes_is_parsed_once_checked_once_and_dumped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, checked = counted(monkeypatch, chain_requests, "load_request"), counted(monkeypatch, checks, "check")
    dumped = counted(monkeypatch, ChainRequest, "model_dump_json")

    chain = engine().checked_chain(REQUEST, {"text": "tea"}, SUBMISSION).with_id()

    assert [bool(document.data["nodes"]) for (document,) in parsed] == [
        True,
        False,
    ]  # of the changes alone the second time
    assert len(checked) == 1
    assert json.loads(chain.text) == {
        **REQUEST,
        "chain_id": chain.request.chain_id,
        "initial_input": {"text": "tea"},
        "timeout": 9.0,
        "webhooks": ["https://example.org/first", "https://example.org/second"],
    }
    assert chain.text is chain.text
    assert len([each for each in dumped if each[0] is chain.request]) == 1


def test_a_request_that_is_one_already_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ChainRequest.model_validate({**REQUEST, "initial_input": {"text": "tea"}, "chain_id": "own"})
    parsed = counted(monkeypatch, chain_requests, "load_request")

    chain = engine().checked_chain(request)

    assert chain.request is request
    assert chain.with_id() is chain
    assert parsed == []


@pytest.mark.parametrize(
    ("given", "submission", "message"),
    [
        ({"text": "tea"}, Submission(timeout_s=-1), "timeout: "),
        ({"text": "tea"}, Submission(timeout_s=1e9), "timeout: "),
        ({"text": "tea"}, Submission(webhooks=["https://example.org"] * 10), "webhooks: "),
        ({"text": {"a": float("inf")}}, AS_CONFIGURED, "initial_input.text.a: "),
    ],
)
def test_changes_with_faults_name_the_place(given: dict[str, Any], submission: Submission, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        engine().checked_chain(REQUEST, given, submission)

    assert [str(fault).startswith(message) for fault in refused.value.faults] == [True]


def test_the_answer_to_a_refused_change_has_the_whole_request() -> None:
    with pytest.raises(ConfigError) as refused:
        engine().checked_chain({**REQUEST, "chain_id": "own"}, submission=Submission(timeout_s=-1))

    assert cast("dict[str, Any]", refused.value.asked)["chain_id"] == "own"


def test_an_input_over_the_limit_of_the_configuration_is_refused() -> None:
    small = DEFINITIONS.model_copy(update={"limits": DEFINITIONS.limits.model_copy(update={"input_bytes": 10})})

    with pytest.raises(ConfigError, match="initial_input"):
        Engine(cast(Any, None), cast(Any, None), small).checked_chain(REQUEST, {"text": [0] * 1000})


def test_faults_of_a_chain_are_all_told() -> None:
    node = {"node_id": "a", "kind": "tool", "name": "gone", "next_node": "b"}
    request = ChainRequest.model_validate({"nodes": [node], "entry_node": "c"})

    with pytest.raises(ConfigError) as refused:
        checked_chain(request, DEFINITIONS)

    assert len(refused.value.faults) == 3


def test_the_target_and_the_time_limit_of_a_turn_are_those_of_its_receiver() -> None:
    chain = checked_turn(TurnRequest(text="tea", workflow="row"), DEFINITIONS)
    workflow = checked_turn(TurnRequest(text="tea", workflow="flow"), DEFINITIONS)
    agent = checked_turn(
        TurnRequest(text="tea", agent="clerk", timeout_s=3, webhooks=["https://example.org"]), DEFINITIONS
    )

    assert [each.target for each in (chain, workflow, agent)] == ["row", "flow", "clerk"]
    assert [each.timeout.seconds for each in (chain, workflow, agent)] == [7, MAX_WORKFLOW_S, 3]
    assert json.loads(agent.text) == {
        "text": "tea",
        "agent": "clerk",
        "timeout_s": 3.0,
        "webhooks": ["https://example.org"],
    }


def test_a_turn_in_a_session_with_an_impossible_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="session"):
        checked_turn(TurnRequest(text="tea", agent="clerk", session="\n"), DEFINITIONS)


def test_a_schedule_of_a_chain_has_its_name_and_input() -> None:
    found = checked_schedule(
        "daily", Schedule.model_validate({"every": "1d", "chain": "row", "input": {"text": "tea"}}), DEFINITIONS
    )

    assert isinstance(found, CheckedChain)
    assert (found.request.chain_id, found.request.initial_input, found.target) == ("row", {"text": "tea"}, "row")


@pytest.mark.parametrize(
    ("more", "target"),
    [
        ({}, "clerk"),
        ({"teams": {"desk": {"mode": "broadcast", "agents": ["clerk"]}}, "defaults": {"team": "desk"}}, "desk"),
    ],
)
def test_the_target_of_a_turn_is_what_answers_it_also_if_nothing_is_named(more: dict[str, object], target: str) -> None:
    definitions = Definitions.model_validate({"agents": {"clerk": {}}, **more})

    assert checked_turn(TurnRequest(text="tea"), definitions).target == target


def test_a_workflow_has_its_own_time_limit_though_a_chain_has_its_name() -> None:
    node = {"node_id": "a", "kind": "tool", "name": "add"}
    definitions = Definitions.model_validate(
        {
            "tools": {"add": {"function": "shop:add"}},
            "chains": {"x": {"entry_node": "a", "nodes": [node], "timeout_s": 7}},
            "workflows": {"x": {"function": "shop:x", "timeout_s": 99}},
        }
    )

    assert workflow_request("x", {}, definitions)["timeout"] == 99
