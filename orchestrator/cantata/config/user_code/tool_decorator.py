"""The `@tool` decorator: marks Python functions as tools and gives them default settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

from cantata.config.user_code.decorators import check_settings
from cantata.errors import ConfigError
from cantata.flows.definitions import Tool
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue

Function = TypeVar("Function", bound=Callable[..., Any])

MARK = "__cantata_tool__"
"""The attribute that holds a function's settings."""


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    queue: str | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    cheap: bool | None = None,
    at_most_once: bool | None = None,
    pure: bool | None = None,
    hidden: Sequence[str] = (),
) -> Callable[[Function], Function]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    queue: str | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    cheap: bool | None = None,
    at_most_once: bool | None = None,
    pure: bool | None = None,
    hidden: Sequence[str] = (),
) -> Function | Callable[[Function], Function]:
    """Give a function the settings of a tool; the function itself is not changed.

    A configuration overrides them. It reads them from the text of the module, without importing it, so they must be literals.

    Args:
        function: The function, for `@tool` without arguments.
        name: Its name in `tools_of`.
        description: Its description for models, in place of the docstring.
        queue: The queue whose workers execute it.
        timeout_s: The time limit of one attempt, in seconds.
        retries: Attempts after the first.
        cheap: Whether a call takes less than 5 ms; measured if None.
        at_most_once: Whether to leave it to a person, instead of repeating it, if its worker dies.
        pure: Whether its calls have no effects, so that any of them may be repeated.
        hidden: Parameters that no model sees.

    Raises:
        ConfigError: A setting has a wrong value, or the function has no parameter that `hidden` names.
    """
    given: dict[str, JsonValue] = {
        "name": name, "description": description, "queue": queue, "timeout_s": timeout_s, "retries": retries, "cheap": cheap,
        "at_most_once": at_most_once, "pure": pure, "hidden": cast(JsonValue, hidden if isinstance(hidden, str) else list(hidden)) or None,
    }  # fmt: skip
    settings = {key: value for key, value in given.items() if value is not None}

    def mark(function: Function) -> Function:
        wrong = check_settings(settings) or _hidden_faults(function, hidden)
        if wrong:
            raise ConfigError(f"@tool of {getattr(function, '__qualname__', function)!r}: {'; '.join(wrong)}")
        setattr(function, MARK, settings)
        return function

    return mark if function is None else mark(function)


def settings_of(function: Callable[..., Any]) -> Mapping[str, JsonValue]:
    """Return the settings of a function's decorator; empty if it has none."""
    return getattr(function, MARK, {})


def tools_of(*functions: Callable[..., Any]) -> dict[str, Tool]:
    """Return functions, decorated or not, as `tools` of definitions written in Python. Raises ConfigError."""
    return dict(map(_entry, functions))


def _entry(function: Callable[..., Any]) -> tuple[str, Tool]:
    where, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<locals>")
    if where == "__main__" or not name.isidentifier():
        raise ConfigError(
            f"{name!r} of {where!r} cannot be found by the workers; define it at the top of a module of its own"
        )
    settings = dict(settings_of(function))
    called = str(settings.pop("name", name))
    return called, Tool.model_validate({"function": f"{where}:{name}", **settings})


def _hidden_faults(function: Callable[..., Any], hidden: Sequence[str]) -> list[str]:
    """Return the faults of the hidden names of a function."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some C functions have none
        return []
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return []
    return [
        f"hidden {name!r} is not a parameter{did_you_mean(name, parameters)}"
        for name in hidden
        if name not in parameters
    ]
