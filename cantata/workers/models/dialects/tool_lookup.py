"""Resolution of tool names in calls."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from cantata.workers.models.dialects.call_parsing import ParsedCall

MAX_QUOTED_CHARS = 100
"""Characters of a name that are quoted to a model; no tool has a longer one."""

MAX_LISTED_TOOLS = 10
"""The number of tools up to which all are listed to a model that calls an unknown one."""


def resolve(call: ParsedCall, known: Collection[str]) -> ParsedCall:
    """Return the call with its tool's own name, or with a fault if there is no such tool.

    A call in JSON names `tool.method`; the method is ignored if the tool has none.
    """
    if call.fault:
        return call
    name = call.name if call.name in known else None if call.dialect == "native" else _without_method(call.name, known)
    return call.model_copy(update={"fault": unknown_tool(call.name, known)} if name is None else {"name": name})


def unknown_tool(name: str, known: Collection[str]) -> str:
    """Return the message to a model that called an unknown tool."""
    name = name if len(name) <= MAX_QUOTED_CHARS else f"{name[:MAX_QUOTED_CHARS]}…"
    message = f"Tool function {name!r} is not available."
    methods = [other for other in known if other.startswith(f"{name}.")]
    near = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(name, methods, n=3, cutoff=0)
    if near:
        return f"{message} Did you mean {' or '.join(map(repr, near))}?"
    return f"{message} There are {', '.join(map(repr, sorted(known)))}." if 0 < len(known) <= MAX_LISTED_TOOLS else message


def _without_method(name: str, known: Collection[str]) -> str | None:
    """Return the tool in `tool.method` if it has no methods; None otherwise."""
    tool, dot, _ = name.rpartition(".")
    while dot and tool not in known:
        tool, dot, _ = tool.rpartition(".")
    has_methods = any(other.startswith(f"{tool}.") for other in known)
    return tool if dot and not has_methods else None
