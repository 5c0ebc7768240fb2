"""Emission of a workflow's steps as the nodes of a chain.

A step becomes a node with its id. It may have auxiliary nodes:

    read.when       decides whether it runs                   (`condition`)
    read.if, .if-2  decide where its output goes              (`output.to`, `navigation`)
    read.rollback   leads back to an earlier step             (`rollback_to`)
    read.report     the chain that receives its output     (`invoke`)
    read.skip       leads to several next steps if it is finally skipped
    begin           leads to several first steps
    given           validates the input                       (`input_schema`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cantata.flows.definitions import Chain
from cantata.flows.wire import ChainNode
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.order import Order
from cantata_frontends.langswarm.chains.output_routes import ChoiceRoute, Invoke, Route, ToStep, ToUser
from cantata_frontends.langswarm.chains.reference_expressions import USER_INPUT, literal, reads, step_value
from cantata_frontends.langswarm.chains.steps import free_name

Fields = dict[str, JsonValue]


@dataclass(frozen=True)
class StepNode:
    """A step as a node, without what comes next."""

    id: str
    node: str
    fields: Fields
    value: str
    """The expression of its output."""
    routes: Sequence[Route] = ()
    when: str | None = None
    """The condition on which it runs."""
    rollback_to: str | None = None
    rollbacks: int = 1
    jumps_to: str | None = None
    """The next step after its failure."""
    is_branch: bool = False
    """Whether it is a branch, whose routes are its sides."""


@dataclass
class NodeEmitter:
    """Builds the nodes of a chain, in order."""

    steps: Mapping[str, StepNode]
    order: Order
    bodies: Sequence[Fields] = ()
    """The nodes that maps run for each item."""
    check: Fields | None = None
    """The node that validates the input, without its id and what comes next."""
    _nodes: dict[str, Fields] = field(default_factory=dict)
    _answers: dict[str, list[str]] = field(default_factory=dict)
    _dropped: list[str] = field(default_factory=list)

    def chain(self, *, description: str = "", timeout_s: float | None = None) -> Chain:
        """Return the chain."""
        for step in self.steps.values():
            self._emit(step)
        entry = self._entry()
        if not self._answers:
            for step, conditions in self._last():
                self._answer(step.id, step.value, conditions)
        answers = {
            name: given[0] if len(given) == 1 else f"not_null({', '.join(given)})"
            for name, given in self._answers.items()
        }
        nodes = [ChainNode.model_validate(fields) for fields in (*self._nodes.values(), *self.bodies)]
        return Chain(
            nodes=nodes,
            entry_node=entry,
            description=description,
            answers=answers,
            dropped=self._dropped,
            timeout_s=timeout_s,
        )

    def _entry(self) -> str:
        first = self._all_of("begin", [self._enter(step_id) for step_id in self.order.first])
        if self.check is None:
            return first
        node = self._free("given")
        self._nodes[node] = {"node_id": node, **self.check, "next_node": first}
        return node

    def _last(self) -> Iterator[tuple[StepNode, tuple[str, ...]]]:
        """Yield the steps that no step follows or reads, with the conditions for that; for a condition, the steps before it."""
        order, read = self.order, self._read_by_others()
        leading = {needed for needs in order.waits_for.values() for needed in needs}
        ends = [
            step
            for step in self.steps.values()
            if not (order.after[step.id] or order.passed.get(step.id) or step.id in leading)
        ]
        for step in [
            step for step in ends if step.routes or step.node not in read
        ] or ends:  # what leads back is read in the next round
            sources = (
                [each for each in self.steps.values() if step.id in order.after[each.id]] if step.is_branch else [step]
            )
            yield from ((each, conditions) for conditions in _ends(step.routes, ()) for each in sources)

    def _read_by_others(self) -> set[str]:
        """Return the nodes whose output another node reads."""
        nodes = {str(fields["node_id"]): fields for fields in (*self._nodes.values(), *self.bodies)}
        return {
            source
            for node, fields in nodes.items()
            for source in nodes_read(fields)
            if node not in (source, f"{source}.when")
        }

    # --- a step -------------------------------------------------------------------------------------------------------

    def _emit(self, step: StepNode) -> None:
        fields: Fields = {"node_id": step.node, **step.fields}
        waits = [self.steps[needed] for needed in self.order.waits_for[step.id]]
        deps: list[JsonValue] = [needed.node for needed in waits if needed.when is None]
        if step.when is not None:
            guard = self._enter(step.id)
            self._nodes[guard] = {
                "node_id": guard,
                "kind": "branch",
                "condition": step.when,
                "true_node": step.node,
                "deps": deps,
            }
        elif deps:
            fields["deps"] = deps
        self._nodes[step.node] = fields
        if step.is_branch:
            self._sides(step, fields)
            behind = self._behind(step)
            for side in ("true_node", "false_node"):
                fields[side] = _one([*_many(fields.get(side)), *behind])
        else:
            ways = [*self._targets(step, step.routes, ()), *self._behind(step)]
            fields["next_node"] = _one(ways)
            if step.when is not None and ways:
                self._nodes[self._enter(step.id)]["false_node"] = _one(ways)
        self._on_error(step, fields, _many(fields.get("next_node")))

    def _behind(self, step: StepNode) -> list[str]:
        """Return the nodes after a step apart from its routes: by list order, a fan's gatherer, and dependants of a conditional step."""
        found = [self._enter(each) for each in self.order.after[step.id]]
        if step.when is not None:
            found += [self._enter(each) for each, needs in self.order.waits_for.items() if step.id in needs]
        return list(dict.fromkeys(found))

    def _enter(self, step_id: str) -> str:
        """Return the node by which a step is entered."""
        step = self.steps[step_id]
        return step.node if step.when is None else f"{step.node}.when"

    def _sides(self, step: StepNode, fields: Fields) -> None:
        """Set the sides of a step that is a condition."""
        for route in step.routes:
            if isinstance(route, ChoiceRoute):
                for side, (test, inner) in zip(("true_node", "false_node"), route.ways, strict=True):
                    targets = self._targets(step, inner, (test,)) or [
                        self._enter(each) for each in self.order.passed[step.id]
                    ]
                    fields[side] = _one(targets)

    def _on_error(self, step: StepNode, fields: Fields, ways: Sequence[str]) -> None:
        jump = self._enter(step.jumps_to) if step.jumps_to else fields.get("on_error")
        if step.rollback_to is not None:
            if jump == "skip" and ways:  # the step is skipped, but not the rollback
                jump = self._all_of(f"{step.node}.skip", ways)
            back = self._free(f"{step.node}.rollback")
            fields["on_error"] = back
            self._nodes[back] = {
                "node_id": back, "kind": "branch", "condition": literal(True), "true_node": self._enter(step.rollback_to),
                "max_iterations": step.rollbacks + 1, **({"on_error": jump} if jump else {}),
            }  # fmt: skip
        elif jump:
            fields["on_error"] = jump

    # --- where its output goes ------------------------------------------------------------------------------------------

    def _targets(self, step: StepNode, routes: Sequence[Route], conditions: tuple[str, ...]) -> list[str]:
        """Return the nodes that routes lead to, and create missing ones; `conditions` are those on the way to them."""
        found: list[str] = []
        for route in routes:
            match route:
                case ToUser():
                    self._answer(step.id, step.value, conditions)
                case ToStep(target):
                    found.append(self._enter(target))
                case Invoke():
                    found.append(self._invoked(step, route))
                case ChoiceRoute():
                    found += self._choice(step, route, conditions)
        return list(dict.fromkeys(found))

    def _choice(self, step: StepNode, choice: ChoiceRoute, conditions: tuple[str, ...]) -> list[str]:
        """Return the first of the branches that test one case after the other."""
        made: list[tuple[str, list[str]]] = []
        for condition, routes in choice.ways[:-1]:
            node = self._free(f"{step.node}.if")
            self._nodes[node] = {}  # it comes before the nodes of inner choices
            made.append((node, self._targets(step, routes, (*conditions, condition))))
        condition, routes = choice.ways[-1]
        entry = self._targets(step, routes, (*conditions, condition))
        for (node, then), (test, _) in zip(reversed(made), reversed(choice.cases), strict=True):
            if then or entry:
                sides: Fields = {"true_node": _one(then), "false_node": _one(entry)}
                self._nodes[node] = {"node_id": node, "kind": "branch", "condition": test, **sides}
                entry = [node]
            else:  # it decides only about the answer
                del self._nodes[node]
        return entry

    def _invoked(self, step: StepNode, route: Invoke) -> str:
        node = self._free(f"{step.node}.{route.chain}")
        given: Fields = dict.fromkeys(USER_INPUT, step.value)
        self._nodes[node] = {"node_id": node, "kind": "chain", "name": route.chain, "input_map": given}
        if route.waits:
            self._answer(route.chain, step_value(node), ())
        else:
            self._nodes[node]["on_error"] = "skip"
            self._dropped.append(node)
        return node

    def _answer(self, name: str, value: str, conditions: tuple[str, ...]) -> None:
        """Add a value to the answers, on the conditions of the way to it."""
        self._answers.setdefault(name, []).append(
            f"([{value}][?{' && '.join(conditions)}] | [0])" if conditions else value
        )

    def _all_of(self, name: str, targets: Sequence[str]) -> str:
        """Return a node that leads to all of these: the only one, or a new branch."""
        if len(targets) == 1:
            return targets[0]
        node = self._free(name)
        self._nodes[node] = {"node_id": node, "kind": "branch", "condition": literal(True), "true_node": [*targets]}
        return node

    def _free(self, name: str) -> str:
        return free_name(name, {*self._nodes, *(step.node for step in self.steps.values())})


def nodes_read(fields: Fields) -> set[str]:
    """Return the nodes whose outputs the expressions of a node read."""
    mapped = fields.get("input_map")
    texts = [
        *(mapped.values() if isinstance(mapped, dict) else ()),
        *(fields[key] for key in ("condition", "items_path") if key in fields),
    ]
    return set().union(*(reads(str(text)) for text in texts))


def _ends(routes: Sequence[Route], conditions: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the conditions under which routes lead nowhere."""
    match routes:
        case ():
            yield conditions
        case (ChoiceRoute() as choice,):
            for test, inner in choice.ways:
                yield from _ends(inner, (*conditions, test))


def _one(nodes: Sequence[str]) -> JsonValue:
    return [*nodes] if len(nodes) > 1 else nodes[0] if nodes else None


def _many(nodes: JsonValue) -> list[str]:
    return [str(node) for node in nodes] if isinstance(nodes, list) else [str(nodes)] if nodes else []
