"""Function names of tool calls, in all shapes that model libraries return."""

from __future__ import annotations

from collections.abc import Mapping


def get_function_name_from_tool_call(call: object) -> str | None:
    """Return the name of the function that a tool call asks for; None if it names none.

    Supports `{"function": {"name": ...}}`, `call.function.name`, mixtures of both, and the output of `call.model_dump()`.
    """
    name = _part(_part(call, "function"), "name")
    if isinstance(name, str) and name:
        return name
    dump = getattr(call, "model_dump", None)
    dumped = dump() if callable(dump) else None
    return get_function_name_from_tool_call(dumped) if isinstance(dumped, Mapping) else None


def _part(whole: object, name: str) -> object:
    return whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)
