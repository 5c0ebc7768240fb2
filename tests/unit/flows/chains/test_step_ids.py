"""Ids of steps, and the nodes that they name."""

from __future__ import annotations

import pytest

from cantata.flows.chains.step_ids import NodeRef, ancestors, maps_above, node_of


@pytest.mark.parametrize(
    ("step_id", "ref"),
    [
        ("a", NodeRef("a")),
        ("a#3", NodeRef("a", iteration=3)),
        ("a#2.1", NodeRef("a", iteration=1)),
        ("m/7", NodeRef("m", index=7)),
        ("m#2/7", NodeRef("m", iteration=2, index=7)),
        ("m/@gather", NodeRef("m", inner=True)),
        ("m/7/2", NodeRef("m", index=7, inner=True)),
        ("m/7/@gather", NodeRef("m", index=7, inner=True)),
        ("g/a#2", NodeRef("g", inner=True)),
        ("g/@7", NodeRef("g", inner=True)),
        ("g/@end", NodeRef("g", inner=True)),
        ("g/h/@end", NodeRef("g", inner=True)),
        ("@start", NodeRef("@start", inner=True)),
    ],
)
def test_a_step_id_tells_its_node(step_id: str, ref: NodeRef) -> None:
    assert node_of(step_id) == ref


def test_ids_of_digits_alone_are_items() -> None:
    assert list(maps_above("m/7/n/12/r1")) == [("m", "m/7", 7), ("m/7/n", "m/7/n/12", 12)]
    assert list(maps_above("g/@7/2.read")) == []
    assert list(maps_above("7")) == []


def test_ancestors_come_nearest_first() -> None:
    assert list(ancestors("m/7/r1")) == ["m/7", "m"]
    assert list(ancestors("m")) == []
