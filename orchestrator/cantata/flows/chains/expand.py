"""Graphs of chain requests, and their expansions: nested chains, map items, rounds of loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import cast

from cantata.flows.chains import declared_inputs
from cantata.flows.chains.graph_of_nodes import MAX_KNOWN, ChainKey, roots
from cantata.flows.chains.loops import outline
from cantata.flows.chains.step_ids import END, GATHER, split
from cantata.flows.chains.steps_of_nodes import LoopRound
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Edge, Graph, ItemSteps, Spec, Step
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue


def plan(request: ChainRequest, definitions: Definitions) -> Graph:
    """Return the graph of a request in which `checks.check` finds nothing wrong: it is checked once, where it is submitted."""
    key = ChainKey(request, definitions)
    return _known_plan(key) if key.is_small else _plan(request, definitions)


@lru_cache(maxsize=MAX_KNOWN)
def _known_plan(key: ChainKey) -> Graph:
    return _plan(key.request(), key.definitions)


def _plan(request: ChainRequest, definitions: Definitions) -> Graph:
    chain = outline(request.nodes, request.entry_node)
    first = LoopRound(chain, definitions)
    return Graph(steps=tuple(first.steps()), edges=tuple(first.edges()), names=first.names(), terminals=chain.terminals)


def expand_chain(nodes: Iterable[ChainNode], entry: str, definitions: Definitions, *, parent: str, chain: str) -> Graph:
    """Return what step `parent` adds to run the named chain on its output; the exit's output is the chain's."""
    whole = outline(nodes, entry)
    first = LoopRound(whole, definitions, parent=parent, chain=chain)
    steps, edges = first.steps(), first.edges()
    answers = definitions.chains[chain].answers
    reads = (
        first.at.reads_of(roots(answers.values(), whole.nodes.all))
        if answers
        else {end: first.at.name(end) for end in whole.terminals}
    )
    params: dict[str, JsonValue] = {"chain": chain, "answers": dict(answers)} if answers else {}
    end = Step(id=f"{parent}/{END}", kind="chain.end", reads=reads, params=params, decides=True)
    sources = {edge.source for edge in edges}
    last = [Edge(source=step.id, target=end.id, wakes=False) for step in steps if step.id not in sources]
    return Graph(steps=(*steps, end), edges=(*edges, *last), names=first.names(), exit=end.id)


def expand_map(step_id: str, spec: Spec, items: Sequence[JsonValue]) -> Graph:
    """Return what a map adds: a step for each item, and the gather that takes the map's place."""
    like, gather = f"{step_id}/*", f"{step_id}/{GATHER}"
    body = Spec.model_validate(spec.params["body"])
    steps = (
        Step(id=like, **dict(body)),
        Step(id=gather, kind="chain.gather", params={"items": len(items), "of": step_id}, decides=True),
    )
    return Graph(
        steps=steps,
        edges=(Edge(source=like, target=gather, wakes=False),),  # without items, the gather runs all the same
        items=ItemSteps(like=like, prefix=step_id, given=tuple(items), window=cast(int, spec.params["window"])),
        exit=gather,
    )


def expand_loop(nodes: Iterable[ChainNode], definitions: Definitions, *, branch_step_id: str, spec: Spec) -> Graph:
    """Return what a branch that points back adds: the next round of its loop. The exit is that round's branch.

    `nodes` are those of the chain that `spec.params["loop"]["chain"]` names, or of the request if that is empty.
    """
    turn = cast("dict[str, str]", spec.params["loop"])
    parent, rounds = split(branch_step_id)
    whole = outline(nodes, turn["entry"])
    following = LoopRound(
        whole,
        definitions,
        parent=parent,
        chain=turn["chain"],
        loop=whole.loops.home[turn["branch"]],
        rounds=(*rounds[:-1], rounds[-1] + 1),
    )
    steps, edges, exit_id = tuple(following.steps()), tuple(following.edges()), following.at.step_id(turn["branch"])
    return Graph(steps=steps, edges=edges, names=following.names(), exit=exit_id, scoped=False)


def input_of(request: ChainRequest) -> dict[str, JsonValue]:
    """Return the input of a request, with the defaults of missing inputs."""
    declared = declared_inputs.sound(request.inputs)
    return declared.filled(request.initial_input) if declared else request.initial_input
