"""The steps that an advance of a workflow adds to its run: one for each new command, and the next advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cantata.flows.chains import steps_of_nodes
from cantata.flows.chains.step_ids import ADVANCE
from cantata.flows.definitions import Definitions
from cantata.flows.graph import RAW, Edge, Graph, Spec, Step
from cantata.flows.wire import ChainNode
from cantata.flows.workflows.history import Recorded, WorkflowCommand
from cantata.flows.workflows.replay import Advance
from cantata.values import JsonValue

LAST = "@last"
"""The name under which an advance reads the activation before it; under their indexes, it reads outcomes of commands."""

LAST_ACTIVATION = "activation"
"""In the detail of the last advance, whose output is the result; that of others is their activation."""

CANCELLED = "@cancelled"
"""The name under which it reads that its code is to get CancelledError."""

MAX_READS = 500  # outcomes that come with the advance; more are read by it


def step_id(root: str, command: Recorded) -> str:
    """Return the id of a command's step."""
    return f"{root}/{command.step}"


def advance_id(root: str, number: int) -> str:
    """Return the id of an advance; the first one is the workflow's own step."""
    return f"{root}/@{number}/{ADVANCE}" if number else root


def fragment(
    root: str, number: int, spec: Spec, advance: Advance, commands: Sequence[Recorded], definitions: Definitions
) -> Graph:
    """Return what advance `number` adds. `commands` are all so far, in order."""
    awaited = {index: step_id(root, commands[index]) for index in advance.awaited}
    parent = advance_id(root, number)
    steps = [_step(root, command, parent, definitions) for command in advance.commands]
    params: dict[str, JsonValue] = {"root": root, "advance": number + 1, "workflow": spec.params["workflow"]}
    grace_s = definitions.workflows[str(spec.params["workflow"])].cancel_grace_s
    params |= {} if grace_s is None else {"grace_s": grace_s}
    params |= {name: spec.params[name] for name in ("base", "continuation") if name in spec.params}
    reads = {LAST: f"{RAW}{parent}"}
    if advance.waits_for_all and len(advance.awaited) <= MAX_READS:
        reads |= {str(index): source for index, source in awaited.items()}
    following = Step(
        **{**dict(spec), "params": params, "reads": reads, "has_given": False, "id": advance_id(root, number + 1)}
    )
    edges = (
        Edge(source=source, target=following.id, wakes=False, alone=not advance.waits_for_all)
        for source in awaited.values()
    )
    stops = tuple(step_id(root, commands[index]) for index in advance.given_up)
    return Graph(steps=(*steps, following), edges=tuple(edges), exit=following.id, stops=stops)


def continuation(root: str, spec: Spec, advance: Advance, commands: Sequence[Recorded]) -> Graph:
    """Return the workflow with a new input and a new history, which nothing of the one before is part of.

    Its open waits are given up, so that those of the new history get the signals that came for them meanwhile.
    """
    given = advance.continues_with
    base, number = str(spec.params.get("base") or root), int(str(spec.params.get("continuation") or 0)) + 1
    params: dict[str, JsonValue] = {
        "workflow": spec.params["workflow"],
        "input": given,
        "base": base,
        "continuation": number,
    }
    step = Step(
        **{**dict(spec), "params": params, "reads": {}, "has_given": False, "id": f"{base}/@again-{number}/{ADVANCE}"}
    )
    return Graph(steps=(step,), exit=step.id, stops=tuple(step_id(root, commands[index]) for index in advance.given_up))


def _step(root: str, command: WorkflowCommand, parent: str, definitions: Definitions) -> Step:
    fields = {
        **_fields(command, definitions),
        "on_error": "skip",
        **command.options,
        "scope": parent,
        "id": step_id(root, command.recorded),
    }
    fields["params"] = {**fields["params"], "line": command.recorded.line}
    if fields.get("at_most_once"):  # one call, whatever it raises
        fields |= {"pure": False, "retries": 0}
    return Step(**fields)


def _fields(command: WorkflowCommand, definitions: Definitions) -> dict[str, Any]:
    kind, target, arguments = command.recorded.kind, command.recorded.target, dict(command.arguments)
    if kind == "sleep":
        return {"kind": "wait", "timeout_s": float(str(arguments["seconds"])) or 0.001, "params": {"sleeps": True}}
    if kind == "wait":
        asks = {"asks": arguments["asks"]} if arguments["asks"] else {}
        options = {"wait": arguments["wait"]} if arguments.get("wait") else {}
        return {"kind": "wait", "timeout_s": arguments["timeout_s"], "params": {"repeats": True, **asks, **options}}
    if kind == "call":
        return {
            "kind": "workflow.call",
            "queue": "tools",
            "work": f"functions:{target}",
            "params": {"function": target, **arguments},
        }
    if kind == "start":
        return {
            "kind": "workflow.start",
            "work": f"runs:{target}",
            "params": {"workflow": target, "input": arguments},
            "decides": True,
        }
    return dict(
        steps_of_nodes.call(ChainNode(node_id="command", kind=kind, name=target, input=arguments), {}, definitions)
    )
