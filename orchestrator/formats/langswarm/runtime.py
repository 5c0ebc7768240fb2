"""What workers run for LangSwarm's files besides the functions of their writers."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.models.values import JsonValue


def value(value: JsonValue = None) -> JsonValue:
    """What it is given."""
    return value


def script(script_: str, function_: str, **arguments: Any) -> JsonValue:
    """What the function of this name gives that a step's `script` defines."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(script_, "script", "exec"), names)
    return cast(JsonValue, names[function_](**arguments))
