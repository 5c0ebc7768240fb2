"""Finds JSON objects in texts of models, and repairs those that are almost JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from pydantic import ConfigDict, TypeAdapter

from cantata.models.values import JsonValue
from cantata.planning import lenient_json

_START = re.compile(r"""\{\s*(?:["'“\u2018}]|[A-Za-z_]\w*\s*:)""")  # a key, or the end: `{name}` and `{1, 2}` in prose are not objects
_FENCE = re.compile(r"(?:```[\w-]*)?")
_AFTER = " \n\r\t`}],;"  # models often close once more than they opened

MAX_OBJECT_STARTS = 1000
"""Each start that is not an object costs a scan of all the text before it: a reply of a megabyte, written for that, took over a minute."""

_DECODER = json.JSONDecoder(strict=False)  # raw newlines in texts are allowed
_OBJECT = TypeAdapter(dict[str, JsonValue], config=ConfigDict(allow_inf_nan=False))


class FoundObject(NamedTuple):
    """An object, and whether it is the whole text, a fence around it aside."""

    value: dict[str, JsonValue]
    is_whole_text: bool


def only_object(text: str) -> dict[str, JsonValue] | None:
    """Return the object that the text consists of; None if there is none, or other text around it."""
    return next((found.value for found in objects_in(text) if found.is_whole_text), None)


def objects_in(text: str) -> Iterator[FoundObject]:
    """Yield the outermost objects in the text, in order. Raises nothing, whatever the text.

    Repaired are fences, surrounding words, trailing or missing commas, raw newlines, other quotes, unescaped quotes and a missing last
    brace. A truncated object is skipped with all that is in it: half of a request must not be executed. The search ends after
    MAX_OBJECT_STARTS possible starts of objects."""
    if _is_other_json(text):
        return
    position = 0
    for _ in range(MAX_OBJECT_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        first = start.start()
        value, position = _decoded(text, first) or _repaired(text, first)
        if value is not None and is_object(value):
            yield FoundObject(value, is_whole_text=bool(_FENCE.fullmatch(text[:first].strip())) and not text[position:].strip(_AFTER))


def is_object(value: object) -> bool:
    """Return whether a value can be stored and sent as a JSON object: not too deep, numbers finite, texts valid UTF-8."""
    try:
        _OBJECT.validate_python(value)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _is_other_json(text: str) -> bool:
    """Return whether the text is JSON other than an object: objects in a list or text are parts of it."""
    try:
        return not isinstance(_DECODER.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _decoded(text: str, first: int) -> tuple[dict[str, JsonValue], int] | None:
    """Return the object that begins there and its end, if it needs no repair."""
    try:
        return cast("tuple[dict[str, JsonValue], int]", _DECODER.raw_decode(text, first))
    except (ValueError, RecursionError):
        return None


def _repaired(text: str, first: int) -> tuple[dict[str, JsonValue] | None, int]:
    """Return the object that begins there, if it can be repaired, and the position at which the search continues."""
    reader = lenient_json.LenientReader(text, first)
    try:
        return reader.object(), reader.position
    except lenient_json.TruncatedError:
        return None, len(text)
    except ValueError:
        return None, reader.position
