"""Which tool a call means."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from cantata.workers.models.dialects.call_parsing import ParsedCall

LONGEST = 100
"""Characters of a name that are repeated to a model; no tool has a longer one."""

FEW = 10
"""So many tools are all named to a model that asks for one which is not there."""


def resolve(call: ParsedCall, known: Collection[str]) -> ParsedCall:
    """The call with its tool's own name, or with the fault that there is none.

    A call in JSON names `tool.method`; the method is ignored if the tool has none.
    """
    if call.fault:
        return call
    name = call.name if call.name in known else None if call.dialect == "native" else _without_method(call.name, known)
    return call.model_copy(update={"fault": unknown_tool(call.name, known)} if name is None else {"name": name})


def unknown_tool(name: str, known: Collection[str]) -> str:
    """What a model is told that asked for a tool which is not there. Source: PromptChain."""
    name = name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
    message = f"Tool function {name!r} is not available."
    methods = [other for other in known if other.startswith(f"{name}.")]
    near = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(name, methods, n=3, cutoff=0)
    if near:
        return f"{message} Did you mean {' or '.join(map(repr, near))}?"
    return f"{message} There are {', '.join(map(repr, sorted(known)))}." if 0 < len(known) <= FEW else message


def _without_method(name: str, known: Collection[str]) -> str | None:
    """The tool in `tool.method`, if it is one without methods."""
    tool, dot, _ = name.rpartition(".")
    while dot and tool not in known:
        tool, dot, _ = tool.rpartition(".")
    has_methods = any(other.startswith(f"{tool}.") for other in known)
    return tool if dot and not has_methods else None
