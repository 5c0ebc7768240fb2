"""Values of workflows: JSON, converted to the types that functions declare."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from inspect import Parameter
from typing import Any, cast, get_type_hints
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cantata import bounds
from cantata.errors import ConfigError, StepError
from cantata.values import JsonValue

_CONVERTIBLE_LEVELS = 250  # pydantic writes 255
_CONVERTED = (BaseModel, date, time, timedelta, Enum, UUID, Decimal)  # datetime is a date
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def arguments_of(function: Callable[..., Any], given: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Return the keyword arguments of a workflow function, converted to the types that it declares. Raises StepError."""
    named, takes_any = _parameters(function)
    missing = [name for name, (is_required, _) in named.items() if is_required and name not in given]
    unknown = [] if takes_any else sorted(given.keys() - named.keys())
    workflow = getattr(function, "__qualname__", "workflow")
    if missing or unknown:
        what = f"lacks {', '.join(map(repr, missing))}" if missing else f"has {', '.join(map(repr, unknown))} besides"
        raise StepError(
            f"the input of workflow {workflow!r} {what}; it takes {', '.join(named) or 'nothing'}", code="bad_arguments"
        )
    types = {name: adapter for name, (_, adapter) in named.items() if adapter}
    own = copy.deepcopy(dict(given))  # what the code does with it must not change what the next replay gets
    converted = {
        name: _converted(types, name, value, f"the input of workflow {workflow!r}") for name, value in own.items()
    }
    return {**{name: value for name, value in _own_defaults(function).items() if name not in own}, **converted}


def _own_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return copies of the defaults that code could change: Python makes these once, and all runs of a process would share them."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        with suppress(Exception):  # what cannot be copied, such as a lock, is shared
            copied = copy.deepcopy(parameter.default)
            if copied is not parameter.default:  # of what cannot be changed there is no copy
                found[name] = copied
    return found


def text_parameter(function: Callable[..., Any]) -> str:
    """Return the only required parameter of a workflow function, which gets the text of a turn. Raises StepError if it has not one."""
    required = [name for name, (is_required, _) in _parameters(function)[0].items() if is_required]
    if len(required) != 1:
        found = ", ".join(map(repr, required)) or "none"
        message = f"a turn gives one text, and workflow {getattr(function, '__qualname__', '')!r} has other required parameters: {found}"
        raise StepError(f"{message}; give it one, or use submit workflow --input", code="bad_arguments")
    return required[0]


def call_arguments(
    function: Callable[..., Any], args: Sequence[JsonValue], kwargs: Mapping[str, JsonValue]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, converted to the types that the function declares. Raises StepError."""
    types, what = _types(function), f"the arguments of {function.__qualname__}"
    names = [*_positional(function), *([""] * len(args))]
    positional = [_converted(types, name, value, what) for name, value in zip(names, args, strict=False)]
    return positional, {name: _converted(types, name, value, what) for name, value in kwargs.items()}


def result_of(function: Callable[..., Any], value: JsonValue) -> Any:
    """Return what a function returned, converted from JSON to the type that it declares. Raises StepError."""
    try:
        return _types(function)["return"].validate_python(value) if "return" in _types(function) else value
    except ValidationError as error:
        message = f"what {function.__qualname__} returned is not of the type that it declares: {describe_fault(error, 'the result')}"
        raise StepError(message, code="bad_result") from None


def jsonable(value: Any, what: str) -> JsonValue:
    """Return a value as JSON: models, dataclasses, dates and the like are converted. Raises StepError for other objects."""
    try:
        return cast(JsonValue, to_jsonable_python(value))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        excess = bounds.find(value, depth=_CONVERTIBLE_LEVELS)
        fault = excess.of(what) if excess and "nested" in excess.message else f"{what} is not JSON: {error}"
        raise StepError(str(fault), code="not_json") from None


def plain_input(given: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the input of a workflow as JSON.

    Pydantic models, dataclasses, dates and times, enums, UUIDs, decimals, sets and tuples are converted.

    Raises:
        ConfigError: A value is of another type, or beyond a bound; the error has its place.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"expected the arguments by name, found a {type(given).__name__}", source="input")
    found = cast("dict[str, JsonValue]", _plain(dict(given), 0))
    bounds.check(found, "input")
    return found


def _plain(value: Any, level: int) -> Any:
    """Return a value as JSON as far as that is possible; at most one level more than a value may have."""
    if level > bounds.MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key: _plain(each, level + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, level + 1) for each in value]
    if isinstance(value, _CONVERTED) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        with suppress(
            PydanticSerializationError, ValueError, RecursionError
        ):  # then it stays, and the check has its place
            return to_jsonable_python(value)
    return value


def _converted(types: Mapping[str, TypeAdapter[Any]], name: str, value: JsonValue, what: str) -> Any:
    try:
        return types[name].validate_python(value) if name in types else value
    except ValidationError as error:
        raise StepError(f"{what}: {describe_fault(error, name)}", code="bad_arguments") from None


def describe_fault(error: ValidationError, name: str) -> str:
    """Return the first fault of a value, with its place in the value of this name."""
    fault = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    return f"{name}{place}: {fault['msg']}"


@lru_cache(maxsize=256)
def _types(function: Callable[..., Any]) -> Mapping[str, TypeAdapter[Any]]:
    """Return the types of a function's parameters, and of what it returns as `return`; without those that pydantic does not know."""
    types: dict[str, TypeAdapter[Any]] = {}
    for name, hint in _hints(function).items():
        with suppress(PydanticUserError):
            types[name] = TypeAdapter(hint)
    return types


@lru_cache(maxsize=256)
def _positional(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the parameters that arguments without a name are for."""
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind in _POSITIONAL]


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[dict[str, tuple[bool, TypeAdapter[Any] | None]], bool]:
    """Return the parameters of a workflow function: whether it is required, and its type if it has one; and whether others are taken."""
    parameters, types = list(inspect.signature(function).parameters.values())[1:], _types(function)
    named = {
        each.name: (each.default is each.empty, types.get(each.name))
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    return named, any(each.kind is each.VAR_KEYWORD for each in parameters)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters; without those that only type checkers import."""
    try:
        return get_type_hints(function)
    except NameError:
        hints = {}
        for name, hint in function.__annotations__.items():
            with suppress(NameError, AttributeError, TypeError, SyntaxError):
                hints[name] = (
                    eval(hint, function.__globals__) if isinstance(hint, str) else hint
                )  # as get_type_hints does
        return hints
