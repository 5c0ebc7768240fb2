"""Runs a graph by the edge rules of docs/design.md, in memory: what the ledger and the workers do, without either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cantata.flows.chains import expand
from cantata.flows.chains.step_ids import name_of, node_of, split
from cantata.flows.definitions import Chain, Definitions
from cantata.flows.expressions.expressions import parse
from cantata.flows.graph import RAW, STEP_OVER, Edge, Graph, Spec, Step, adopt
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue

Tool = Callable[[dict[str, JsonValue]], JsonValue]
Choose = Callable[[Sequence[str]], str]
Decide = Callable[[str, int], bool]


class ToolFailure(Exception):
    """What a tool raises to fail its step."""


@dataclass
class Run:
    """A run of a chain; `story` has the steps in the order in which they began."""

    request: ChainRequest
    definitions: Definitions
    tools: Mapping[str, Tool] = field(default_factory=dict)
    choose: Choose = field(default=lambda ready: ready[0])
    decide: Decide | None = None
    """What a branch says when it is come to for the nth time; its condition if absent."""
    story: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, JsonValue] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    status: str = "running"

    def __post_init__(self) -> None:
        self._specs: dict[str, Step] = {}
        self._edges: dict[str, list[Edge]] = {}
        self._pending: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._scopes: dict[str, list[str]] = {}

    def play(self) -> Run:
        """Plans the request and does steps until none is ready."""
        graph = expand.plan(self.request, self.definitions)
        self.outputs["@start"] = dict(self.request.initial_input)
        self.states["@start"] = "done"
        self._grow(graph, "@start", Spec(kind="run.start"))
        while self.status == "running" and (ready := [step for step, word in self.states.items() if word == "ready"]):
            self._do(self.choose(ready))
        if self.status == "running":
            left = [step for step, word in self.states.items() if word not in STEP_OVER]
            assert not left, f"these wait for ever: {left}"
            self.status = "succeeded"
        return self

    def output(self, node_id: str) -> JsonValue:
        """The output of a node."""
        return self.outputs.get(self.answering(node_id))

    def state(self, node_id: str) -> str:
        """How a node ended; `absent` if it has no step."""
        return self.states.get(self.answering(node_id), "absent")

    def answering(self, name: str) -> str:
        """The step that answers to a name."""
        while name in self.names:
            name = self.names[name]
        return name

    # --- the ledger's part ----------------------------------------------------------------------------------------------

    def _grow(self, graph: Graph, parent: str, spec: Spec) -> None:
        graph = adopt(graph, parent, spec) if parent != "@start" else graph
        steps, edges = _spread(graph)
        new = {step.id for step in steps}
        assert len(new) == len(steps), "an id stands twice in a fragment"
        assert not new & self._specs.keys(), "an id is given twice"
        asked: set[str] = set()
        for step in steps:
            self._specs[step.id] = step
            self._edges[step.id] = []
            self.states[step.id] = "waiting"
        for edge in edges:
            assert edge.source in new, f"{edge} comes from an older step"
            assert self.states.get(edge.target) == "waiting", (
                f"{edge} leads to a step that is {self.states.get(edge.target)}"
            )
            assert edge not in self._edges[edge.source], f"{edge} stands twice"
            self._edges[edge.source].append(edge)
            self._pending[edge.target] += 1
            if edge.wakes:
                asked.add(edge.target)
        if graph.exit:
            self._edges[graph.exit] += self._edges[parent]
            self._edges[parent] = []
            self.names[parent] = graph.exit
        self.names |= graph.names
        scope = parent if graph.scoped else spec.scope
        self._scopes.setdefault(scope or "", []).extend(step.id for step in steps if step.id != graph.exit)
        self.states[parent] = "done"
        for step in steps:
            if step.id not in asked:
                self._taken[step.id] += 1
            if not self._pending[step.id]:
                self._settle(step.id)

    def _settle(self, step_id: str) -> None:
        if not self._taken[step_id]:
            self._resolve(step_id, "skipped", ())
        else:
            self.states[step_id] = "ready"

    def _resolve(self, step_id: str, word: str, takes: Sequence[str]) -> None:
        assert self.states[step_id] not in STEP_OVER, f"{step_id} ends twice"
        self.states[step_id] = word
        for edge in self._edges[step_id]:
            if self.states[edge.target] == "waiting":
                self._pending[edge.target] -= 1
                self._taken[edge.target] += edge.wakes and edge.label in takes
                if not self._pending[edge.target]:
                    self._settle(edge.target)

    def _fail(self, step_id: str) -> None:
        spec = self._specs[step_id]
        if spec.on_error == "skip":
            self._resolve(step_id, "failed", ("done",))
        elif spec.on_error == "jump":
            self._resolve(step_id, "failed", ("failed",))
        elif spec.scope is None:
            self.states[step_id] = self.status = "failed"
        else:
            self.states[step_id] = "failed"
            for inner in self._scopes[spec.scope]:
                if self.states[inner] not in STEP_OVER:
                    self.states[inner] = "skipped"
            self._fail(self.answering(spec.scope))

    # --- the workers' part ------------------------------------------------------------------------------------------------

    def _do(self, step_id: str) -> None:
        self.story.append(step_id)
        spec = self._specs[step_id]
        root, names = self._root(step_id, spec)
        try:
            _HANDLERS[spec.kind](self, step_id, spec, root, names)
        except ToolFailure:
            self._fail(step_id)

    def _read(self, reference: str) -> JsonValue:
        step_id = reference[1:] if reference.startswith(RAW) else self.answering(reference)
        assert self.states.get(step_id, "done") in STEP_OVER, f"{step_id} is read while it is {self.states[step_id]}"
        return self.outputs.get(step_id)

    def _root(self, step_id: str, spec: Step) -> tuple[dict[str, JsonValue], frozenset[str]]:
        inputs = {name: self._read(reference) for name, reference in spec.reads.items()}
        initial = inputs.get("@input")
        before = [value for name, value in inputs.items() if name.startswith("@before/")]
        root: dict[str, JsonValue] = {**(initial if isinstance(initial, dict) else {}), "input": initial}
        root["output"] = next((value for value in before if value is not None), None)
        if spec.window is not None and step_id.startswith(f"{spec.window}/"):
            root |= {"_item": spec.given, "item": spec.given}
        names = frozenset(name for name in inputs if not name.startswith("@"))
        return root | {name: inputs[name] for name in names}, names

    def _done(self, step_id: str, output: JsonValue, takes: Sequence[str] = ("done",)) -> None:
        self.outputs[step_id] = output
        self._resolve(step_id, "done", takes)


def _spread(graph: Graph) -> tuple[list[Step], list[Edge]]:
    """A fragment with its items as steps of their own."""
    if graph.items is None:
        return list(graph.steps), list(graph.edges)
    items = graph.items
    like = next(step for step in graph.steps if step.id == items.like)
    spread = [
        like.model_copy(update={"id": f"{items.prefix}/{i}", "given": value}) for i, value in enumerate(items.given)
    ]
    edges = [edge.model_copy(update={"source": step.id}) for edge in graph.edges for step in spread]
    return [*(step for step in graph.steps if step is not like), *spread], edges


def _input(spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> dict[str, JsonValue]:
    given = cast("dict[str, JsonValue]", spec.params.get("input") or {})
    mapped = cast("dict[str, str]", spec.params.get("map") or {})
    return {**given, **{key: parse(text, names).evaluate(root) for key, text in mapped.items()}}


def _call(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    name = spec.work.partition(":")[2]
    run._done(step_id, run.tools.get(name, _echo)(_input(spec, root, names)))


def _echo(given: dict[str, JsonValue]) -> JsonValue:
    return given


def _branch(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    node_id = node_of(step_id).node_id
    visit = sum(node_of(step_id).node_id == node_id for step_id in run.story)
    holds = run.decide(node_id, visit) if run.decide else parse(str(spec.params["condition"]), names).is_true(root)
    side = "true" if holds else "false"
    loop = cast("dict[str, JsonValue] | None", spec.params.get("loop"))
    if loop is None or loop["side"] != side:
        return run._done(step_id, holds, ("done", side))
    if split(step_id)[1][-1] >= cast(int, loop["max_iterations"]):
        return run._fail(step_id)
    run.outputs[step_id] = holds
    graph = expand.expand_loop(_nodes(run, str(loop["chain"])), run.definitions, branch_step_id=step_id, spec=spec)
    running = [
        old
        for old in map(run.answering, graph.names)
        if old != step_id and run.states.get(old, "done") not in STEP_OVER
    ]
    assert not running, f"{step_id} begins a round while {running} of the last are under way"
    return run._grow(graph, step_id, spec)


def _nodes(run: Run, chain: str) -> Sequence[ChainNode]:
    return run.definitions.chains[chain].nodes if chain else run.request.nodes


def _map(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    items = parse(str(spec.params["items"]), names).evaluate(root) or []
    run.outputs[step_id] = None
    run._grow(expand.expand_map(step_id, spec, cast("list[JsonValue]", items)), step_id, spec)


def _gather(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    count = cast(int, spec.params["items"])
    run._done(step_id, [run.output(f"{spec.params['of']}/{i}") for i in range(count)])


def _run(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    name = str(spec.params["chain"])
    chain = run.definitions.chains[name]
    run.outputs[step_id] = _input(spec, root, names)
    run._grow(
        expand.expand_chain(chain.nodes, chain.entry_node, run.definitions, parent=step_id, chain=name), step_id, spec
    )


def _end(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    answers = cast("dict[str, str]", spec.params.get("answers") or {})
    given = {name: parse(text, names).evaluate(root) for name, text in answers.items()} or {
        name: root[name] for name in spec.reads
    }
    ran = {name: value for name, value in given.items() if value is not None}
    if answers and not ran:
        return run._done(
            step_id, _last_output(run, step_id.removesuffix("/@end"), run.definitions.chains[str(spec.params["chain"])])
        )
    return run._done(step_id, next(iter(ran.values())) if len(ran) == 1 else cast(JsonValue, ran or None))


def _last_output(run: Run, parent: str, chain: Chain) -> JsonValue:
    outputs = [
        run.output(name_of(node.node_id, parent))
        for node in chain.nodes
        if node.kind != "branch" and node.node_id not in chain.dropped
    ]
    return next((output for output in reversed(outputs) if output is not None), None)


def _wait(run: Run, step_id: str, spec: Step, root: dict[str, JsonValue], names: frozenset[str]) -> None:
    run._done(step_id, spec.given)


_HANDLERS: Mapping[str, Callable[[Run, str, Step, dict[str, JsonValue], frozenset[str]], None]] = {
    "tool.call": _call,
    "agent.turn": _call,
    "proc.run": _call,
    "chain.branch": _branch,
    "chain.map": _map,
    "chain.gather": _gather,
    "chain.run": _run,
    "chain.end": _end,
    "wait": _wait,
}
