"""Graphs: each answer is what its plain definition gives, and a row of 10,000 is no matter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.graphs import Reachability, components, cycles, postorder, reach, reversed_graph, shortest_cycle

NODES = [str(i) for i in range(7)]
ROW = [str(i) for i in range(10_000)]

graphs = st.fixed_dictionaries({node: st.lists(st.sampled_from(NODES), max_size=3) for node in NODES})
starts = st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True)


def leads(graph: dict[str, list[str]], source: str, target: str) -> bool:
    """The plain definition: by as many steps as there are nodes."""
    found = {source}
    for _ in graph:
        found |= {following for node in found for following in graph.get(node, [])}
    return target in found


@given(graphs, starts)
def test_all_that_is_led_to_is_reached_and_nothing_else(graph: dict[str, list[str]], begin: Sequence[str]) -> None:
    reached = reach(begin, graph)

    assert reached == {node for node in NODES if any(leads(graph, start, node) for start in begin)}
    assert sorted(postorder(begin, graph)) == sorted(reached)


@given(graphs)
def test_reachability_knows_all_pairs(graph: dict[str, list[str]]) -> None:
    way = Reachability(NODES, graph)

    for source, target in product(NODES, NODES):
        assert way.leads(source, target) == leads(graph, source, target)


@given(graphs)
def test_nodes_are_of_one_component_if_each_leads_to_the_other(graph: dict[str, list[str]]) -> None:
    groups = components(NODES, graph)
    number = {node: i for i, group in enumerate(groups) for node in group}

    assert sorted(node for group in groups for node in group) == NODES
    for source, target in product(NODES, NODES):
        assert (number[source] == number[target]) == (leads(graph, source, target) and leads(graph, target, source))


@given(graphs)
def test_edges_lead_forward_through_the_components(graph: dict[str, list[str]]) -> None:
    number = {node: i for i, group in enumerate(components(NODES, graph)) for node in group}

    assert all(number[source] <= number[target] for source, targets in graph.items() for target in targets)


@given(graphs)
def test_a_cycle_is_a_way_back(graph: dict[str, list[str]]) -> None:
    in_cycles = {node for group in cycles(NODES, graph) for node in group}

    for node in NODES:
        cycle = shortest_cycle(node, graph)
        assert bool(cycle) == (node in in_cycles)
        assert all(target in graph[source] for source, target in pairwise(cycle))
        assert not cycle or (cycle[0], cycle[-1]) == (node, node)


@given(graphs)
def test_turning_a_graph_round_twice_changes_nothing(graph: dict[str, list[str]]) -> None:
    twice = reversed_graph(reversed_graph(graph))

    assert {node: sorted(twice.get(node, [])) for node in NODES} == {
        node: sorted(targets) for node, targets in graph.items()
    }


@pytest.mark.parametrize("closed", [False, True])
def test_a_row_or_ring_of_10_000_is_no_matter(closed: bool) -> None:
    graph = {source: [target] for source, target in pairwise(ROW)}
    if closed:
        graph[ROW[-1]] = [ROW[0]]

    assert len(components(ROW, graph)) == (1 if closed else len(ROW))
    assert len(shortest_cycle("0", graph)) == (len(ROW) + 1 if closed else 0)
    assert Reachability(ROW, graph).leads(ROW[-1], "0") == closed
