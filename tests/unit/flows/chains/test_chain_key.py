"""What is known of equal chains: nothing of one is used for another, and little is kept."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

from cantata.flows.chains import checks, expand, graph_of_nodes
from cantata.flows.definitions import Definitions, Limits, Tool
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import stored
from tests.unit.flows.sample_chains import DEFINITIONS, tool

ROW = [tool("a", next_node="b"), tool("b", input_map={"x": "city"})]


def asked(nodes: list[ChainNode] = ROW, **changes: object) -> ChainRequest:
    return ChainRequest.model_validate({"nodes": nodes, "entry_node": "a", "initial_input": {"city": "Ulm"}, **changes})


def test_equal_nodes_are_checked_and_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check(asked(), DEFINITIONS)[0] == []
    plan = expand.plan(asked(), DEFINITIONS)

    def outline(*_: object) -> None:
        raise AssertionError("they are worked out again")

    monkeypatch.setattr(checks, "outline", outline)
    monkeypatch.setattr(expand, "outline", outline)
    assert checks.check(asked(initial_input={"city": "Bonn"}, chain_id="other"), DEFINITIONS)[0] == []
    assert expand.plan(asked(initial_input={"city": "Bonn"}, chain_id="other"), DEFINITIONS) is plan


def test_other_nodes_inputs_and_definitions_have_results_of_their_own() -> None:
    assert checks.check(asked(), DEFINITIONS)[0] == []

    faults = {
        "a name": checks.check(asked([tool("a", next_node="b"), tool("b", input_map={"x": "town"})]), DEFINITIONS)[0],
        "an input": checks.check(asked(initial_input={"town": "Ulm"}), DEFINITIONS)[0],
        "a declaration": checks.check(asked(inputs={"town": "string"}), DEFINITIONS)[0],
        "a value": checks.check(asked(inputs={"city": "integer"}), DEFINITIONS)[0],
        "the definitions": checks.check(asked(), Definitions())[0],
        "a limit": checks.check(asked(), DEFINITIONS.model_copy(update={"limits": Limits(max_nodes=1)}))[0],
    }
    assert [change for change, found in faults.items() if not found] == []
    moved = DEFINITIONS.model_copy(update={"tools": {**DEFINITIONS.tools, "t": Tool(function="m:t", queue="gpu")}})
    assert [expand.plan(asked(), each).steps[0].queue for each in (DEFINITIONS, moved)] == ["tools", "gpu"]


def test_a_caller_may_change_the_list_of_faults() -> None:
    broken = [tool("a", name="zzz")]
    checks.check(asked(broken), DEFINITIONS)[0].clear()

    assert checks.check(asked(broken), DEFINITIONS)[0] != []


def test_results_of_large_chains_and_of_many_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_of_nodes, "MAX_KNOWN_CHARS", 10)

    assert expand.plan(asked(), DEFINITIONS) is not expand.plan(asked(), DEFINITIONS)
    assert checks.check(asked(), DEFINITIONS)[0] == []
    assert expand._known_plan.cache_info().maxsize == graph_of_nodes.MAX_KNOWN


def test_results_for_many_names_of_inputs_are_not_kept() -> None:
    misses = checks._known_faults.cache_info().misses

    assert (
        checks.check(
            asked(initial_input={"city": "Ulm", **{f"n{number:06}": 1 for number in range(20_000)}}), DEFINITIONS
        )[0]
        == []
    )

    assert checks._known_faults.cache_info().misses == misses


def test_what_a_chain_may_hold_a_key_may_hold() -> None:
    deep: object = "end"
    for _ in range(240):
        deep = [deep]
    for value in (deep, 10**30, "\ud800"):
        request = stored(
            ChainRequest,
            asked([tool("a")]).model_dump() | {"nodes": [{**tool("a").model_dump(), "input": {"x": value}}]},
        )
        assert checks.check(request, DEFINITIONS)[0] == []
        assert expand.plan(request, DEFINITIONS).steps[0].params["input"] == {"x": value}


def test_definitions_that_nobody_else_has_are_not_kept() -> None:
    definitions = DEFINITIONS.model_copy()
    checks.check(asked(), definitions)
    expand.plan(asked(), definitions)
    known = ref(definitions)

    del definitions
    gc.collect()

    assert known() is None
