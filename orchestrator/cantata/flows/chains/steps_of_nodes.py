"""Nodes become steps: the spec of each kind of node, what a node reads, and the steps and edges of a chain or of a round of a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from cantata.flows.chains.graph_of_nodes import ITEM_NAMES, ON_ERROR_WORDS, Link
from cantata.flows.chains.loops import Loop, Outline, adjacency
from cantata.flows.chains.step_ids import in_round, name_of
from cantata.flows.definitions import Definitions, Tool, mcp_tool
from cantata.flows.graph import RAW, START, Edge, Spec, Step
from cantata.flows.graphs import reach
from cantata.flows.turns.agent_steps import agent_spec, history_seen, tool_fields
from cantata.flows.wire import ChainNode
from cantata.flows.workflows.workflow_specs import ADVANCE_TIMEOUT_S, workflow_spec
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "tool": ("tools",),
    "skill": ("skills", "agents", "teams", "chains"),
    "agent": ("agents", "teams"),
    "chain": ("chains",),
    "workflow": ("workflows",),
    "proc": ("commands",),
}
"""Kind of a node → the sections in which its name is looked up."""


Reads = Mapping[str, str]


def section_of(kind: str, name: str, definitions: Definitions) -> str | None:
    """Return the section of the definitions with the name of a node of this kind; `server.tool` is in the section of its server."""
    return next((section for section in SECTIONS.get(kind, ()) if _is_in(section, name, definitions)), None)


def unknown_name(kinds: Iterable[str], name: str, definitions: Definitions) -> str:
    """Return that the configuration has no such name for nodes of these kinds; empty if it has."""
    if any(section_of(kind, name, definitions) for kind in kinds):
        return ""
    known = [each for kind in kinds for section in SECTIONS[kind] for each in getattr(definitions, section)]
    return f"the configuration has no {' or '.join(kinds)} {name!r}{did_you_mean(name, known)}"


def tools_in(section: str, definitions: Definitions) -> Mapping[str, Tool]:
    """Return the functions and servers of a section; none for sections of something else."""
    return {"tools": definitions.tools, "skills": definitions.skills}.get(section, {})


def _is_in(section: str, name: str, definitions: Definitions) -> bool:
    tools = tools_in(section, definitions)
    if name in tools:
        return tools[name].mcp is None  # a server is not a tool, but its tools are
    return name in getattr(definitions, section) or mcp_tool(name, tools) is not None


def call(node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    """Return the spec of a node that calls something by name."""
    section = section_of(node.kind, node.name, definitions)
    if section is None:
        raise KeyError(f"there is no {node.kind} {node.name!r}")  # the check runs before, with a better message
    return _CALLS[section](section, node, reads, definitions)


def branch(node: ChainNode, reads: Reads, loop: Mapping[str, JsonValue] | None) -> Spec:
    """Return the spec of a branch; with `loop`, of one that points back."""
    params: dict[str, JsonValue] = {"condition": node.condition}
    if loop:
        params["loop"] = dict(loop)
    return Spec(
        kind="chain.branch",
        reads=dict(reads),
        params=params,
        on_error=_on_error(node),
        decides=True,
        expands=bool(loop),
    )


def mapping(node: ChainNode, reads: Reads, body: Spec, definitions: Definitions) -> Spec:
    """Return the spec of a map that runs `body` for each item."""
    skips = node.on_error == "skip" or body.on_error == "skip"
    item = body.model_copy(update={"on_error": "skip" if skips else "abort"})
    params: dict[str, JsonValue] = {
        "items": node.items_path,
        "body": item.model_dump(exclude_defaults=True),
        "window": node.max_concurrency or definitions.defaults.max_concurrency,
        "skip": skips,
    }
    return Spec(
        kind="chain.map", reads=dict(reads), params=params, on_error=_on_error(node), decides=True, expands=True
    )


def wait(node: ChainNode) -> Spec:
    """Return the spec of a node that waits for a signal; its input is the question."""
    asks: dict[str, JsonValue] = {"asks": node.input} if node.input else {}
    return Spec(kind="wait", timeout_s=node.timeout, params={**asks, **node.params()})


def _on_error(node: ChainNode) -> Literal["abort", "skip", "jump"]:
    return "jump" if node.on_error not in ON_ERROR_WORDS else "skip" if node.on_error == "skip" else "abort"


def _params(node: ChainNode, of_kind: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    given: dict[str, JsonValue] = {"input": node.input} if node.input else {}
    mapped: dict[str, JsonValue] = {"map": dict(node.input_map)} if node.input_map else {}
    return {**of_kind, **given, **mapped}


def _called(
    kind: str, section: str, node: ChainNode, reads: Reads, params: Mapping[str, JsonValue], **own: Any
) -> Spec:
    """Return a spec with the fields common to all that is called by name; `own` overrides them."""
    common = {
        "work": f"{section}:{node.name}",
        "params": _params(node, params),
        "retries": node.retry,
        "timeout_s": node.timeout,
    }
    return Spec(kind=kind, reads=dict(reads), on_error=_on_error(node), **{**common, **own})


def _function(section: str, node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    tools = tools_in(section, definitions)
    name, method = mcp_tool(node.name, tools) or (node.name, "")
    tool = tools[name]
    if tool.asks:
        waiting = wait(node)
        own = {"work": f"{section}:{node.name}", "timeout_s": node.timeout or tool.timeout_s}
        return waiting.model_copy(update={**own, "params": {**waiting.params, **tool.wait_params()}})
    own = tool_fields(tool, timeout_s=node.timeout)
    retries = 0 if tool.at_most_once else node.retry or tool.retries
    params: dict[str, JsonValue] = {"section": section, "tool": name, **({"method": method} if method else {})}
    return _called(tool.step_kind(method), section, node, reads, params, retries=retries, **own)


def _agent(section: str, node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    agent = definitions.agents[node.name]
    own = {"on_error": _on_error(node), "retries": node.retry or agent.retries, "timeout_s": node.timeout}
    return agent_spec(node.name, agent, reads, _params(node, history_seen(agent))).model_copy(update=own)


def _graph(section: str, node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    named = section.removesuffix("s")
    return _called(f"{named}.run", section, node, reads, {named: node.name}, decides=True, expands=True)


def _workflow(section: str, node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    own = {
        "reads": dict(reads),
        "on_error": _on_error(node),
        "retries": node.retry,
        "timeout_s": node.timeout or ADVANCE_TIMEOUT_S,
    }
    return workflow_spec(node.name, definitions, _params(node, {}), **own)


def _command(section: str, node: ChainNode, reads: Reads, definitions: Definitions) -> Spec:
    timeout_s = node.timeout or definitions.commands[node.name].timeout_s
    return _called("proc.run", section, node, reads, {"command": node.name}, queue="tools", timeout_s=timeout_s)


_CALLS: Mapping[str, Callable[[str, ChainNode, Reads, Definitions], Spec]] = {
    "tools": _function,
    "skills": _function,
    "agents": _agent,
    "teams": _graph,
    "chains": _graph,
    "workflows": _workflow,
    "commands": _command,
}


# --- references of a node to others, in the rounds of its loops -----------------------------------------------------


@dataclass(frozen=True)
class References:
    """A chain in the run that requested it, or nested under the step `parent`."""

    outline: Outline
    parent: str
    rounds: Mapping[Loop, int]
    """Loop → its current round; loops that are missing are in their first round."""

    def name(self, node_id: str) -> str:
        """Return the name of a node, which does not depend on the round."""
        return name_of(node_id, self.parent)

    def numbers(self, node_id: str) -> tuple[int, ...]:
        """Return the rounds of the loops that contain a node, the outermost first."""
        return tuple([self.rounds.get(loop, 1) for loop in self.outline.loops.path(node_id)])

    def step_id(self, node_id: str) -> str:
        """Return the step of a node in this round."""
        return in_round(self.name(node_id), self.numbers(node_id))

    def reads(self, node_id: str) -> dict[str, str]:
        """Return the reads of a node's expressions: node ids, and if they need them `@input`, and `@before/0` ... for `output`."""
        nodes = self.outline.nodes
        me, roots = nodes.owner_of(node_id), nodes.roots[node_id]
        reads = {root: self._reference(me, nodes.owner_of(root)) for root in sorted(roots) if root in nodes.all}
        others = roots - reads.keys() - (ITEM_NAMES if me != node_id else frozenset())
        if others - {"output"}:
            reads["@input"] = f"{RAW}{self.parent or START}"
        if "output" in others:
            reads.update({f"@before/{i}": before for i, before in enumerate(dict.fromkeys(self._before(me)))})
        return reads

    def reads_of(self, roots: Collection[str]) -> dict[str, str]:
        """Return the reads of expressions behind the whole chain: node ids, each in its last round, and if they need it `@input`."""
        nodes = self.outline.nodes
        reads = {root: self.name(nodes.owner_of(root)) for root in sorted(roots) if root in nodes.all}
        return reads if reads.keys() >= set(roots) else {**reads, "@input": f"{RAW}{self.parent or START}"}

    @cached_property
    def _recalled(self) -> set[tuple[str, str]]:
        return {(link.source, link.target) for link in self.outline.loops.recalls}

    def _reference(self, reader: str, source: str) -> str:
        if (source, reader) in self._recalled:
            return self._recall(reader, source) or RAW + in_round(self.name(source), (0,))  # no such step: null
        return self.name(source)

    def _before(self, node_id: str) -> Iterator[str]:
        for source, backs in self.outline.before(node_id):
            if any(source in loop.body for loop in backs):
                before = self._recall(node_id, source)
                if before:
                    yield before
            elif all(self.rounds.get(loop, 1) > 1 for loop in backs):
                yield self.name(source)

    def _recall(self, reader: str, source: str) -> str | None:
        """Return the step of a node in the round before of the same loop; None in the first round.

        The name of a branch that expanded to its next round means that round, so its own output is read instead. Loops with the same first
        node are one loop to their reader: the first round of the inner one follows the last round of the one before.
        """
        shared = [loop for loop in self.outline.loops.path(reader) if source in loop.body]
        for depth in range(len(shared), 0, -1):
            loop, numbers = shared[depth - 1], self.numbers(reader)[:depth]
            if numbers[-1] > 1:
                before = in_round(self.name(source), (*numbers[:-1], numbers[-1] - 1))
                return RAW + before if source == loop.branch else before
            if depth == 1 or shared[depth - 2].first != loop.first:
                return None
        return None


# --- the steps and edges of a round ---------------------------------------------------------------------------------

GUARD = "never"
"""A label that no outcome takes: the edge makes its target wait, and never starts it."""


class LoopRound:
    """A whole chain with the first round of each loop, or a further round of `loop`: the last of `rounds`.

    A round has the nodes that its start leads to without going back in a loop; the rest of a body comes with a later round. Where a link
    leaves a loop, the step behind it must wait until the loop is left, whichever round takes it:

        control   an edge from each round's copy, and a guard from the branch, which no outcome takes
        data      an edge from the branch, for what is read is the last round's; and one from each round's copy: the branch may be skipped

    The branch's edges move from round to round, since each round's branch expands to the next round with that round's branch as the exit. A
    further round has no edges from outside its body: their sources are over when the first round is, since the branch waits for them.
    """

    def __init__(
        self,
        outline: Outline,
        definitions: Definitions,
        *,
        parent: str = "",
        chain: str = "",
        loop: Loop | None = None,
        rounds: tuple[int, ...] = (),
    ) -> None:
        self._outline = outline
        self._definitions = definitions
        self._chain = chain
        self._loop = loop
        self._depth = max(len(rounds) - 1, 0)
        self._nodes = outline.nodes.all
        self._inside = [node_id for node_id in outline.nodes.steps if loop is None or node_id in loop.body]
        self._live = _live(outline, loop)
        self.at = References(outline, parent, dict(zip(loop.path, rounds, strict=True)) if loop else {})

    def steps(self) -> list[Step]:
        """Return the steps, in the order of their nodes."""
        live = [self._nodes[node_id] for node_id in self._inside if node_id in self._live]
        return [
            Step(id=self.at.step_id(node.node_id), given=node.default, **vars(self._spec(node.node_id)))
            for node in live
        ]

    def edges(self) -> list[Edge]:
        """Return the edges among the steps, and from them to older ones that lie behind the loop."""
        edges = _Edges()
        loops, inside = self._outline.loops, set(self._inside)
        for link in self._outline.nodes.links:
            if link.source in inside and link not in loops.backs and link not in loops.recalls:
                self._add(link, edges)
        for node_id in self._inside:
            body = self._body_of(node_id)
            if body and node_id in self._live and not edges.targets[node_id] & body.body:
                edges.add(node_id, body.branch, wakes=False)  # else the next round could begin while it runs
        step_id = self.at.step_id
        return [
            Edge(source=step_id(source), target=step_id(target), label=label, wakes=wakes)
            for source, target, label, wakes in edges.needed()
        ]

    def names(self) -> dict[str, str]:
        """Return name → the step, or the name within a round, that answers to it from now on."""
        names = {}
        for node_id in self._inside:
            name, numbers = self.at.name(node_id), self.at.numbers(node_id)
            names.update(
                {
                    in_round(name, numbers[:i]): in_round(name, numbers[: i + 1])
                    for i in range(self._depth, len(numbers))
                }
            )
        return names

    # --- edges ------------------------------------------------------------------------------------------------------

    def _add(self, link: Link, edges: _Edges) -> None:
        """Add the edges of a link."""
        source, target, wakes = link.source, link.target, self._outline.loops.wakes(link)
        left = next((loop for loop in self._loops_at(source) if target not in loop.body), None)
        if self._loop and target not in self._loop.body:
            if (
                wakes and source in self._live and source != self._loop.branch
            ):  # what leaves from the branch came with the first round
                edges.add(source, target, link.label)
        elif target in self._live:
            if source in self._live and (wakes or not left):
                edges.add(source, target, link.label, wakes=wakes)
            if left and link.sort != "leads":
                edges.add(left.branch, target, wakes=wakes)
            elif left and left.branch != source:
                edges.add(left.branch, target, GUARD)
        elif left or source in self._live:  # the branch that may begin the target's round waits for what this will need
            entered = next((loop for loop in reversed(self._loops_at(target)) if source not in loop.body), None)
            if entered:
                edges.add(left.branch if left else source, entered.branch, wakes=False)

    def _body_of(self, node_id: str) -> Loop | None:
        """Return the innermost loop whose branch is still to come behind a node."""
        return next((loop for loop in reversed(self._loops_at(node_id)) if loop.branch != node_id), None)

    def _loops_at(self, node_id: str) -> list[Loop]:
        """Return the loops that a node is in and that can go round from here, the outermost first."""
        return [loop for loop in self._outline.loops.path(node_id)[self._depth :] if loop.branch in self._live]

    # --- steps ------------------------------------------------------------------------------------------------------

    def _spec(self, node_id: str) -> Spec:
        """Return the spec of a node's step, or of each item of the map that it is the map_node of."""
        node = self._nodes[node_id]
        if node.kind == "wait":
            return wait(node)
        reads = self.at.reads(node_id)
        if node.kind == "branch":
            return branch(node, reads, self._turn(node_id))
        if node.kind == "map":
            return mapping(node, reads, self._spec(node.map_node or ""), self._definitions)
        return call(node, reads, self._definitions)

    def _turn(self, node_id: str) -> dict[str, JsonValue] | None:
        """Return the parameters with which a branch begins another round of its loop."""
        loop = self._outline.loops.home.get(node_id)
        if loop is None or loop.branch != node_id:
            return None
        turn: dict[str, JsonValue] = {
            "chain": self._chain,
            "entry": self._outline.entry,
            "branch": node_id,
            "side": loop.link.label,
        }
        return {**turn, "max_iterations": self._nodes[node_id].max_iterations}


def _live(outline: Outline, loop: Loop | None) -> set[str]:
    """Return the nodes that have a step in a round."""
    into: dict[str, list[Link]] = defaultdict(list)
    for link in outline.waking:
        into[link.target].append(link)
    start = loop.first if loop else outline.entry
    return _begun(outline, loop, {start}, into)


def _begun(outline: Outline, loop: Loop | None, starts: Iterable[str], into: Mapping[str, list[Link]]) -> set[str]:
    """Return the nodes of a body, or of the whole chain, that its starts lead to without going back in a loop.

    A loop inside may be left from any of its rounds, so all behind it counts; of itself only what is in its first.
    """
    body = loop.body if loop else outline.nodes.steps
    if loop:
        into = {
            node: [link for link in into.get(node, ()) if link.source in loop.body and link is not loop.link]
            for node in body
        }
    reached = reach(starts, adjacency(link for node in body for link in into.get(node, ())))
    begun = {node for node in reached if outline.loops.home.get(node) is loop}
    for within in outline.loops.inside[loop]:
        inwards = [link for node in within.body for link in into.get(node, ()) if link.source not in within.body]
        entered = {link.target for link in inwards if link.source in reached}
        begun |= _begun(outline, within, entered | (within.body & set(starts)), into)
    return begun


class _Edges:
    """Edges between nodes, each pair's labels together."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], dict[str, bool]] = {}
        self.targets: dict[str, set[str]] = defaultdict(set)

    def add(self, source: str, target: str, label: str = "done", *, wakes: bool = True) -> None:
        labels = self._labels.setdefault((source, target), {})
        labels[label] = labels.get(label, False) or wakes
        self.targets[source].add(target)

    def needed(self) -> Iterator[tuple[str, str, str, bool]]:
        """Yield source, target, label, wakes. An edge that only orders is left out beside one that wakes, and a guard beside either."""
        for (source, target), labels in self._labels.items():
            waking = [label for label, wakes in labels.items() if wakes and label != GUARD]
            for label in waking or labels.keys() & {GUARD} or labels:
                yield source, target, label, labels[label]
