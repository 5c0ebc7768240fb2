"""Reading of a model's reply into prompt arguments. The error messages are Diskurs's own, since users' prompts depend on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Literal, cast, get_args, get_origin

from cantata.errors import StepError
from cantata.models.values import JsonValue
from cantata.planning import json_repair
from cantata.workers.frontends.diskurs.user_code import fields
from cantata.workers.frontends.diskurs.user_code.code_loading import refusal_of

MAX_REPLY_CHARS = 1_000_000
MAX_JSON_DEPTH = 5
"""Levels of JSON texts within JSON."""
TRUE_WORDS = ("true", "1", "yes")
_NOT_STORABLE = "it is nested too deep, or a number in it is not finite, or a text has half a character"


class ReplyError(ValueError):
    """A reply is not valid; the message is for the model."""


def read_reply(text: str, cls: type, locked: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return the values of a reply for the fields that replies fill, without the `locked` ones. Raises ReplyError."""
    return read_fields(read_object(text), cls, locked)


def read_object(text: str) -> dict[str, JsonValue]:
    """Return the JSON object of a reply; accept fences, text around it, curly quotes, trailing commas, raw newlines and nested JSON."""
    if len(text) > MAX_REPLY_CHARS:
        raise ReplyError(f"JSON response exceeds maximum size of {MAX_REPLY_CHARS} characters.")
    value = _read(text, 1)
    if not isinstance(value, dict):
        raise ReplyError(f"Expected a JSON object, got {type(value).__name__}.")
    return value


def _read(text: str, depth: int) -> JsonValue:
    if depth > MAX_JSON_DEPTH:
        raise ReplyError("Maximum JSON nesting depth exceeded.")
    try:
        value = cast(JsonValue, json.loads(text, strict=False))
    except (ValueError, RecursionError) as error:
        found = list(json_repair.objects_in(text))
        if found:
            return next((each.value for each in found if each.is_whole_text), found[0].value)
        raise _unreadable(error) from None
    if isinstance(value, dict) and not json_repair.is_object(value):
        raise ReplyError(f"Invalid JSON: {_NOT_STORABLE}. Please ensure the response is valid JSON.")
    return _read(value, depth + 1) if isinstance(value, str) else value


def _unreadable(error: ValueError | RecursionError) -> ReplyError:
    if isinstance(error, RecursionError):
        return ReplyError("Maximum JSON nesting depth exceeded.")
    fault = f"{error.msg} at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
    return ReplyError(f"Invalid JSON: {fault}. Please ensure the response is valid JSON.")


def read_fields(given: Mapping[str, JsonValue], cls: type, locked: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return the values of the fields that replies fill, converted to their types. Raises ReplyError."""
    hints = fields.hints(cls)
    wanted = fields.filled_by_replies(cls, locked)
    _check_names(given, cls, wanted)
    return {name: _value(given[name], hints[name]) for name in wanted if name in given}


def check_made(cls: type, arguments: Mapping[str, JsonValue]) -> None:
    """Raise ReplyError if a class refuses its fields' values by a ValueError or PromptValidationError."""
    with _refusals():
        fields.from_json(cls, arguments)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except StepError as error:
        refusal = refusal_of(error) or (str(error.__cause__) if isinstance(error.__cause__, ValueError) else None)
        if refusal is None:
            raise
        raise ReplyError(refusal or str(error)) from None


def _check_names(given: Mapping[str, JsonValue], cls: type, wanted: list[str]) -> None:
    declared = {each.name: each for each in dataclasses.fields(cls)}
    missing = [
        name
        for name in wanted
        if name not in given and declared[name].default is dataclasses.MISSING and declared[name].default_factory is dataclasses.MISSING
    ]
    extra = sorted(given.keys() - declared.keys())
    parts = []
    if missing:
        parts.append(f"Missing required fields: {', '.join(sorted(missing))}.")
    if extra:
        parts.append(f"Extra fields provided: {', '.join(extra)}. Please remove them.")
    if parts:
        raise ReplyError(" ".join([*parts, f"Valid fields are: {', '.join(wanted)}."]))


def _value(value: JsonValue, hint: Any) -> Any:
    options = fields.options(hint)
    if value is None or (value == "" and str not in options):  # both mean "no value", whatever the type
        return None
    fitting = next((each for each in options if _fits(value, each)), options[0])
    return _converted(value, fitting)


def _fits(value: JsonValue, kind: Any) -> bool:
    """Return whether a value is of a type without conversion."""
    origin = get_origin(kind) or kind
    if dataclasses.is_dataclass(origin):
        return isinstance(value, dict)
    return isinstance(origin, type) and type(value) is origin


def _converted(value: JsonValue, kind: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any or (origin is Literal and value in get_args(kind)):
        return value
    if kind is bool:
        return value.strip().lower() in TRUE_WORDS if isinstance(value, str) else bool(value)
    if kind is list or origin is list:
        if not isinstance(value, list):
            raise _refused(value, kind)
        return [_value(each, get_args(kind)[0]) for each in value] if origin is list else value
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        with _refusals():
            return fields.merge_nested(cast(type, kind), read_fields(value, cast(type, kind)))
    if origin is Literal or dataclasses.is_dataclass(kind) or not callable(origin or kind):
        raise _refused(value, kind)
    try:
        made = (origin or kind)(value)
    except (TypeError, ValueError, ArithmeticError):
        raise _refused(value, kind) from None
    return made.value if isinstance(made, Enum) else fields.to_json(made)


def _refused(value: JsonValue, kind: Any) -> ReplyError:
    return ReplyError(f"Type conversion failed for field: expected {kind}, got {type(value)} ({value})")
