"""Reading of a model's reply into prompt arguments. The error messages are Diskurs's own, since users' prompts depend on them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Literal, cast, get_args, get_origin

from cantata.errors import StepError
from cantata.flows.expressions import json_repair
from cantata.values import JsonValue
from cantata_workers.frontends.diskurs.user_code import code_loading, fields

MAX_REPLY_CHARS = 1_000_000
MAX_JSON_DEPTH = 5
"""Levels of JSON texts within JSON."""
TRUE_WORDS = ("true", "1", "yes")
_FENCE = "```"
_LANGUAGE = re.compile(r"[\w-]*")
_TEXT = r'("(?:[^"\\]|\\.)*+"?)'
_CURLY_QUOTES = re.compile(rf"{_TEXT}|[“”]", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"{_TEXT}|,(?=\s*[}}\]])", re.DOTALL)
_NOT_STORABLE = "it is nested too deep, or a number in it is not finite, or a text has half a character"


class ReplyError(ValueError):
    """A reply is not valid; the message is for the model."""


def read_reply(text: str, cls: type, locked: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return the values of a reply for the fields that replies fill, without the `locked` ones. Raises ReplyError."""
    return read_fields(read_object(text), cls, locked)


def read_object(text: str) -> dict[str, JsonValue]:
    """Return the JSON object of a reply; accept fences, text around it, curly quotes, trailing commas, raw newlines and nested JSON.

    Nothing else is repaired, and of two objects none is chosen. Raises ReplyError.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise ReplyError(f"JSON response exceeds maximum size of {MAX_REPLY_CHARS} characters.")
    value = _read(text, 1)
    if not isinstance(value, dict):
        raise ReplyError(f"Expected a JSON object, got {type(value).__name__}.")
    return value


def _read(text: str, depth: int) -> JsonValue:
    if depth > MAX_JSON_DEPTH:
        raise ReplyError("Maximum JSON nesting depth exceeded.")
    text = _without_fence(text)
    try:
        try:
            value = cast(JsonValue, json.loads(text, strict=False))
        except json.JSONDecodeError:
            value = cast(JsonValue, json.loads(_tidied(text), strict=False))
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None
    if isinstance(value, dict) and not json_repair.is_object(value):
        raise ReplyError(f"Invalid JSON: {_NOT_STORABLE}. Please ensure the response is valid JSON.")
    return _read(value, depth + 1) if isinstance(value, str) else value


def _without_fence(text: str) -> str:
    inner = text.strip().removeprefix(_FENCE)
    return _LANGUAGE.sub("", inner.removesuffix(_FENCE), count=1).strip() if text.strip() != inner else text


def _tidied(text: str) -> str:
    """Return the text from the first brace to the last, with straight quotes and without trailing commas; texts stay as they are."""
    first, last = text.find("{"), text.rfind("}")
    text = text[first : last + 1] if 0 <= first < last else text
    text = _CURLY_QUOTES.sub(lambda found: found[1] or '"', text)
    return _TRAILING_COMMAS.sub(lambda found: found[1] or "", text)


def _unreadable(error: ValueError | RecursionError) -> ReplyError:
    if isinstance(error, RecursionError):
        return ReplyError("Maximum JSON nesting depth exceeded.")
    fault = (
        f"{error.msg} at line {error.lineno}, column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else error
    )
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
        refusal = code_loading.refusal_of(error) or (
            str(error.__cause__) if isinstance(error.__cause__, ValueError) else None
        )
        if refusal is None:
            raise
        raise ReplyError(refusal or str(error)) from None


def _check_names(given: Mapping[str, JsonValue], cls: type, wanted: list[str]) -> None:
    declared = {each.name: each for each in dataclasses.fields(cls)}
    missing = [
        name
        for name in wanted
        if name not in given
        and declared[name].default is dataclasses.MISSING
        and declared[name].default_factory is dataclasses.MISSING
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
    expected = code_loading.without_modules(str(kind))
    return ReplyError(f"Type conversion failed for field: expected {expected}, got {type(value)} ({value})")
