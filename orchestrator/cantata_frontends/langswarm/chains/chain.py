"""Compilation of an entry of `workflows:` into a chain: steps become nodes, their references to each other become edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cantata.bounds import MAX_DURATION_S
from cantata.errors import without_warnings
from cantata.flows.definitions import Chain
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.inputs import read_schema
from cantata_frontends.langswarm.chains.navigation import read_navigation
from cantata_frontends.langswarm.chains.node_emitter import Fields, NodeEmitter, StepNode, nodes_read
from cantata_frontends.langswarm.chains.order import Order, order, targets_of
from cantata_frontends.langswarm.chains.output_routes import ChoiceRoute, Route, Targets, ToUser
from cantata_frontends.langswarm.chains.reference_expressions import Scope, reads, step_value
from cantata_frontends.langswarm.chains.step_calls import CallBuilder, read_condition, retries_of
from cantata_frontends.langswarm.chains.steps import FAULTY, ChainStep, agents_of, read_steps
from cantata_frontends.langswarm.config_part import ConfigPart, either
from cantata_frontends.langswarm.symbol_table import SymbolTable
from cantata_frontends.langswarm.vocabulary import CHAIN_KEYS, MODES

_ON_ERROR: Mapping[str, str] = {
    **dict.fromkeys(("abort", "fail", "stop"), "abort"),
    **dict.fromkeys(("skip", "continue", "ignore"), "skip"),
}
_ITEM = '$."_item"'
_BELOW = "next_step"
"""The target that means the step below, as no target does."""
_NOT_IN_BODIES = (
    "output", "condition", "depends_on", "fan_key", "is_fan_in", "fan_in_id", "async", "rollback_to", "rollback_limit", "navigation",
)  # fmt: skip
_BEFORE = 'not_null($."output", $."input"."input")'
"""The output of the step before; for the first step the input of the chain."""


def compile_chain(name: str, part: ConfigPart, symbols: SymbolTable) -> tuple[Chain | None, Mapping[str, ConfigPart]]:
    """Return the chain of an entry of `workflows:`, and the parts of the file that its nodes come from. Faults go to the part."""
    compiler = _Compiler(name, part, symbols)
    return compiler.compile(), compiler.locations


class _Compiler:
    def __init__(self, name: str, part: ConfigPart, symbols: SymbolTable) -> None:
        self._part = part
        self._before = len(part.faults)
        self._symbols = symbols
        part.check_keys(CHAIN_KEYS)
        self._inputs = symbols.chains[name]
        self._variables = self._inputs.defaults
        self._mode = self._read_mode()
        self._steps = {step.id: step for step in read_steps(part if isinstance(part.value, list) else part.at("steps"))}
        self._bodies = dict(self._read_bodies())
        self._aliases = self._read_aliases()
        self._values = {step.id: step_value(step.node) for step in self._steps.values()}
        self._navigations = {
            step.id: found
            for step in self._steps.values()
            if step.is_navigator and (found := read_navigation(step, self._steps, self._values[step.id]))
        }
        changes: dict[str, object] = {"stream": True} if self._mode == "streaming" else {}
        at_once = self._mode in ("async", "parallel") or bool(part.at("async").boolean())
        self._call_builder = CallBuilder(symbols, name, retries_of(part), changes, at_once)
        self._output_schema = read_schema(part.at("output_schema"))
        if part.has("settings"):
            part.at("settings").warn("no effect: it is about LangSwarm's own process")
        self.locations = {step.node: step.part for step in self._steps.values()}

    def compile(self) -> Chain | None:
        """Return the chain; None if there are faults."""
        if not self._steps:
            self._part.fault("the workflow has no steps")
            return None
        listed = [step for step in self._steps.values() if step.id not in self._bodies and step.kind != FAULTY]
        routes = {step.id: self._routes(step) for step in listed}
        jumps = {step.id: jump for step in listed if (jump := self._jump(step)) is not None}
        step_nodes = {step.id: self._draw(step, routes[step.id], jumps.get(step.id), {}) for step in listed}
        bodies = [
            self._body(self._steps[body], self._steps[loop])
            for body, loop in self._bodies.items()
            if self._steps[body].kind != FAULTY
        ]
        reading = {step_id for step_id, each in step_nodes.items() if self._reads_others(each)}
        found = order(listed, routes, jumps, reading, parallel=self._mode == "parallel")
        self._check_schema(listed, routes)
        self._check_reached(listed, found, routes, jumps, reading)
        step_nodes |= {
            step_id: self._gathering(step_nodes[step_id], members) for step_id, members in found.gathered.items()
        }
        described, timeout_s = (
            self._part.first("description", "name"),
            either(self._part, "timeout", "timeout_seconds").number(least=0.001, most=MAX_DURATION_S),
        )
        description = described.text() if described else ""
        if without_warnings(self._part.faults[self._before :]):
            return None
        check = self._call_builder.check(self._inputs.schema) if self._inputs.schema else None
        return NodeEmitter(step_nodes, found, bodies, check).chain(description=description, timeout_s=timeout_s)

    # --- the chain as a whole ----------------------------------------------------------------------------------------

    def _read_mode(self) -> str:
        part = self._part.at("execution_mode")
        mode = part.text() if part.value is not None else "sync"
        part.is_known(mode, MODES, "execution mode")
        return mode

    def _continues_on_error(self) -> bool:
        """Return whether a failed step does not fail the chain."""
        continues = bool(self._part.at("continue_on_error").boolean())
        if not self._part.has("error_strategy"):
            return continues
        part = self._part.at("error_strategy")
        if part.text() not in ("continue", "stop"):
            part.fault("expected 'continue' or 'stop'")
        elif self._part.has("continue_on_error") and continues != (part.text() == "continue"):
            part.fault("'error_strategy' and 'continue_on_error' contradict each other; write one of them")
        return part.text() == "continue"

    def _check_schema(self, listed: Sequence[ChainStep], routes: Mapping[str, Sequence[Route]]) -> None:
        answering = [step for step in listed if any(isinstance(route, ToUser) for route in _all(routes[step.id]))]
        if self._part.has("output_schema") and not any(step.kind == "agent" for step in answering):
            self._part.at("output_schema").warn(
                "'output_schema' has no effect: no step with an agent has 'output.to: user'"
            )

    def _check_reached(
        self,
        listed: Sequence[ChainStep],
        found: Order,
        routes: Mapping[str, Sequence[Route]],
        jumps: Mapping[str, str],
        reading: set[str],
    ) -> None:
        reached = {*found.first, *reading, *jumps.values(), *(each for after in found.after.values() for each in after)}
        reached.update(*found.passed.values())
        reached |= {each for each, needs in found.waits_for.items() if needs}
        reached |= {target for ways in routes.values() for target in targets_of(ways)}
        reached |= {each.at("rollback_to").text() for each in listed if each.has("rollback_to")}
        for step in listed:
            if step.id not in reached:
                step.part.fault(
                    f"no step leads to {step.id!r}: no 'output.to' names it, and the step above has an 'output.to' of its own"
                )

    # --- names ----------------------------------------------------------------------------------------------------------

    def _scope(self, step: ChainStep, items: Mapping[str, str], *, behind: bool = False) -> Scope:
        """Return the scope of names in a step; with `behind`, in its `output`."""
        known = {
            each.id: self._values[each.id] for each in self._steps.values() if each.id != each.asks or each.has("id")
        }
        known |= {alias: self._latest(owners, step, behind=behind) for alias, owners in self._aliases.items()}
        agents = {agent: self._values[first] for agent, first in agents_of([*self._steps.values()]).items()}
        for other in self._steps.values():
            if other.id == step.id and not behind:
                break
            if other.asks:
                agents[other.asks] = self._values[other.id]
            if other.id == step.id:
                break
        before = self._values[step.id] if behind else _ITEM if items and not step.has("input") else _BEFORE
        formats = {
            each.id: each.at("output").at("format")
            for each in self._steps.values()
            if isinstance(each.at("output").value, dict)
        }
        named = {step_id: part.text() for step_id, part in formats.items() if part.value is not None}
        return Scope({**known, **items}, agents, self._variables, before, self._earlier(step, behind=behind), named)

    def _earlier(self, step: ChainStep, *, behind: bool) -> Mapping[str, str]:
        """Return the outputs of the steps above a step, without those that loops run; for one of those, of the steps above its loop."""
        own = step.id
        while own in self._bodies:
            own = self._bodies[own]
        steps = [each for each in self._steps if each not in self._bodies]
        return {each: self._values[each] for each in steps[: steps.index(own) + behind]}

    def _read_aliases(self) -> Mapping[str, Sequence[str]]:
        """Return for each alias of outputs the steps whose output it is, in order."""
        found: dict[str, list[str]] = {}
        for step in self._steps.values():
            for part, alias in _aliases(step):
                if alias != step.id and alias in self._steps:
                    part.fault(f"{alias!r} is the id of a step; give the output another name")
                found.setdefault(alias, []).append(step.id)
        return found

    def _latest(self, owners: Sequence[str], step: ChainStep, *, behind: bool) -> str:
        """Return the most recent output among those with one name: of the steps above, or else the first."""
        location = {step_id: location for location, step_id in enumerate(self._steps)}
        above = [each for each in owners if location[each] < location[step.id] or (behind and each == step.id)]
        values = [self._values[each] for each in reversed(above or owners[:1])]
        return values[0] if len(values) == 1 else f"not_null({', '.join(values)})"

    def _reads_others(self, step_nodes: StepNode) -> bool:
        """Return whether a step reads the output of another, and so starts after it."""
        nodes = {step.node for step in self._steps.values()} - {step_nodes.node}
        return bool((reads(step_nodes.when or "") | nodes_read(step_nodes.fields)) & nodes)

    # --- a step ---------------------------------------------------------------------------------------------------------

    def _draw(self, step: ChainStep, routes: Sequence[Route], jump: str | None, items: Mapping[str, str]) -> StepNode:
        scope = self._scope(step, items)
        navigation = self._navigations.get(step.id)
        answers = any(isinstance(route, ToUser) for route in _all(routes))
        fields = self._call_builder.fields(step, scope, navigation, self._output_schema if answers else None)
        for body in [body for body, loop in self._bodies.items() if loop == step.id]:
            fields["map_node"] = self._steps[body].node
        if navigation is not None and not step.has("output"):
            routes = navigation.routes(self._values[step.id])
        if step.kind != "condition" and (word := self._on_error(step)) is not None:
            fields["on_error"] = word
        step_nodes = StepNode(
            step.id, step.node, fields, self._values[step.id], routes, is_branch=step.kind == "condition"
        )
        when = step.at("condition") if step.kind != "condition" and step.has("condition") else None
        target, rollbacks = self._rollback(step)
        read = read_condition(when, scope) if when is not None else None
        return replace(step_nodes, when=read, jumps_to=jump, rollback_to=target, rollbacks=rollbacks)

    def _routes(self, step: ChainStep) -> tuple[Route, ...]:
        scope = self._scope(step, {}, behind=True)
        steps = [step_id for step_id in self._steps if step_id not in self._bodies]
        targets = Targets(steps, agents_of([*self._steps.values()]), self._symbols.chains)
        if step.kind == "condition":
            test = read_condition(step.at("condition"), self._scope(step, {})) if step.has("condition") else ""
            sides = [targets.read(step.at(side), scope) for side in ("true_step", "false_step")]
            if any(isinstance(route, ToUser) for route in _all([*sides[0], *sides[1]])):
                step.part.fault(
                    "a condition leads to steps, not to 'user', who would only get its value; let the step before answer"
                )
            return (ChoiceRoute(((test, sides[0]),), sides[1]),)
        output = step.at("output")
        if output.value is None:
            navigation = self._navigations.get(step.id)
            return navigation.routes(self._values[step.id]) if navigation else ()
        if not isinstance(output.value, dict):
            return targets.read(output, scope)
        output.check_keys(("to", "to_step", "collect", "format", "save_as"))
        to = either(output, "to", "to_step")
        if to.value == _BELOW and _BELOW not in self._steps:
            return ()
        if step.is_navigator and to.value is not None:
            to.fault("'navigation' already determines the next step")
        return targets.read(to, scope)

    def _on_error(self, step: ChainStep) -> str | None:
        """Return abort or skip; None if a failure leads to a step, or the file has no setting."""
        if step.has("on_error"):
            word = _ON_ERROR.get(step.at("on_error").text())
            if step.has("continue_on_error") and step.at("continue_on_error").boolean() != (word == "skip"):
                step.at("continue_on_error").fault(
                    "'continue_on_error' and 'on_error' contradict each other; write one of them"
                )
            return word
        if step.has("continue_on_error"):
            return "skip" if step.at("continue_on_error").boolean() else "abort"
        return "skip" if self._continues_on_error() and step.kind != "approval" else None

    def _jump(self, step: ChainStep) -> str | None:
        """Return the step that a failure leads to: `on_error`, or the `fallback_step` of a navigation, if that comes later."""
        part = step.at("on_error")
        if part.value is None and (navigation := self._navigations.get(step.id)):
            ids = [*self._steps]
            return navigation.fallback if navigation.fallback in ids[ids.index(step.id) + 1 :] else None
        if part.value is None or part.text() in _ON_ERROR:
            return None
        target = part.text()
        if target not in self._steps or target in self._bodies:
            part.fault(f"there is no step {target!r}{did_you_mean(target, [*self._steps, *_ON_ERROR])}")
            return None
        return target

    def _rollback(self, step: ChainStep) -> tuple[str | None, int]:
        """Return the step that a failure leads back to, and how often."""
        if not step.has("rollback_to"):
            if step.has("rollback_limit"):
                step.at("rollback_limit").warn("'rollback_limit' has no effect without 'rollback_to'")
            return None, 1
        part = step.at("rollback_to")
        target = part.text()
        earlier = [*self._steps][: [*self._steps].index(step.id) + 1]
        if target not in earlier:
            why = "comes later" if target in self._steps else f"is not there{did_you_mean(target, earlier)}"
            part.fault(f"step {target!r} {why}; a rollback goes to an earlier step")
            return None, 1
        return target, step.at("rollback_limit").count(least=1) or 1

    def _gathering(self, step_nodes: StepNode, members: Sequence[str]) -> StepNode:
        """Return a gatherer; without an input of its own, its input is the outputs of the fan."""
        step = self._steps[step_nodes.id]
        if step.has("input") or step.kind != "agent":
            return step_nodes
        given: JsonValue = {member: self._values[member] for member in members}
        return replace(step_nodes, fields={**step_nodes.fields, "input_map": given})

    # --- loops ----------------------------------------------------------------------------------------------------------

    def _read_bodies(self) -> Iterator[tuple[str, str]]:
        """Yield the steps that loops run, each with its loop; an inline one becomes a step of the chain."""
        loops = [step for step in self._steps.values() if step.kind == "loop"]
        taken: dict[str, str] = {}
        for loop in loops:  # extended while nested loops are found
            part = loop.at("loop").at("body")
            if isinstance(part.value, dict):
                for body in read_steps(part):
                    inner = replace(body, id=f"{loop.id}.{body.id}", node=f"{loop.node}.{body.node}")
                    self._steps[inner.id] = inner
                    loops += [inner] if inner.kind == "loop" else []
                    yield inner.id, loop.id
            elif part.value is None:
                loop.at("loop").fault("a loop needs a 'body': the step that runs for each item")
            elif (name := part.text()) in taken:
                part.fault(f"step {name!r} is the body of {taken[name]!r} already; give each loop its own")
            elif part.is_known(name, self._steps, "step"):
                taken[name] = loop.id
                yield name, loop.id

    def _body(self, step: ChainStep, loop: ChainStep) -> Fields:
        """Return the node that a loop runs for each item."""
        for key in _NOT_IN_BODIES:
            if step.has(key) and (key, step.kind) != ("async", "loop"):
                step.at(key).fault(f"{key!r} has no effect on the body of a loop; put it on {loop.id!r}")
        if step.kind == "approval":
            step.part.fault("a loop cannot run an approval")
        var = loop.at("loop").at("var")
        name = var.text() if var.value is not None else "item"
        if step.has("on_error") and step.at("on_error").text() not in _ON_ERROR:
            step.at("on_error").fault(
                f"expected one of {', '.join(map(repr, _ON_ERROR))}; a step to go to belongs on {loop.id!r}"
            )
        step_nodes = self._draw(step, (), None, {name: _ITEM})
        return {"node_id": step.node, **step_nodes.fields}


def _aliases(step: ChainStep) -> Iterator[tuple[ConfigPart, str]]:
    """Yield the aliases of a step's output."""
    yield from step.at("output_key").texts()
    output = step.at("output")
    if isinstance(output.value, dict):
        for key in ("collect", "save_as"):
            yield from output.at(key).texts()


def _all(routes: Sequence[Route]) -> Iterator[Route]:
    for route in routes:
        yield route
        if isinstance(route, ChoiceRoute):
            for _, inner in route.ways:
                yield from _all(inner)
