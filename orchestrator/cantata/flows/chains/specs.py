"""Specs of the steps of each kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from cantata.flows.chains.links import ON_ERROR_WORDS
from cantata.flows.definitions import Definitions, Tool, mcp_tool
from cantata.flows.graph import Spec
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
    return Spec(kind="chain.branch", reads=dict(reads), params=params, on_error=_on_error(node), decides=True, expands=bool(loop))


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
    return Spec(kind="chain.map", reads=dict(reads), params=params, on_error=_on_error(node), decides=True, expands=True)


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


def _called(kind: str, section: str, node: ChainNode, reads: Reads, params: Mapping[str, JsonValue], **own: Any) -> Spec:
    """Return a spec with the fields common to all that is called by name; `own` overrides them."""
    common = {"work": f"{section}:{node.name}", "params": _params(node, params), "retries": node.retry, "timeout_s": node.timeout}
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
    own = {"reads": dict(reads), "on_error": _on_error(node), "retries": node.retry, "timeout_s": node.timeout or ADVANCE_TIMEOUT_S}
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
