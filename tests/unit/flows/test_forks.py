"""Ended runs: what a name meant at the end, and which steps and edges are whose."""

from __future__ import annotations

from cantata.flows.forks import EndedRun, ExpandedItems, Expansion, OutEdge

RUN = EndedRun(
    run_id="r",
    status="failed",
    kind="chain",
    request={},
    definitions="",
    labels={},
    steps={},
    specs={},
    shared={"m/0": "m/*", "m/1": "m/*"},
    edges={"m/*": (OutEdge("end", "done", True),), "m/1": ()},
    names={"a": "a#1", "a#1": "a#2"},
    expansions={},
    terminals="[]",
)


def test_a_name_that_moved_several_times_means_the_last_step() -> None:
    assert [RUN.resolve(name) for name in ("a", "a#1", "a#2", "b")] == ["a#2", "a#2", "a#2", "b"]


def test_an_item_of_a_map_has_the_edges_of_its_common_spec_unless_it_has_its_own() -> None:
    assert [RUN.edges_of(step_id) for step_id in ("m/0", "m/1", "b")] == [(OutEdge("end", "done", True),), (), ()]


def test_an_expansion_adds_its_items_in_place_of_their_common_spec() -> None:
    items = ExpandedItems(like="m/*", prefix="m", count=2, window=1)

    assert Expansion(ids=("m/*", "m/end"), items=items).steps == ["m/end", "m/0", "m/1"]
    assert Expansion(ids=("a", "b")).steps == ["a", "b"]
