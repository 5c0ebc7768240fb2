"""Finds the JSON objects in what a model wrote, and mends them where they are almost JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from pydantic import ConfigDict, TypeAdapter

from cantata.models.values import JsonValue
from cantata.planning import lenient_json

_START = re.compile(r"""\{\s*(?:["'“\u2018}]|[A-Za-z_]\w*\s*:)""")  # a key, or the end: `{name}` and `{1, 2}` of prose are no objects
_FENCE = re.compile(r"(?:```[\w-]*)?")
_AFTER = " \n\r\t`}],;"  # models like to close once more than they opened

MAX_OBJECT_STARTS = 1000
"""Each that is no object costs a look through all the text before it: a reply of a megabyte, written for that, took over a minute."""

_DECODER = json.JSONDecoder(strict=False)  # raw newlines in texts are read as they are
_OBJECT = TypeAdapter(dict[str, JsonValue], config=ConfigDict(allow_inf_nan=False))


class FoundObject(NamedTuple):
    """An object, and whether it is all there is, save a fence around it."""

    value: dict[str, JsonValue]
    is_whole_text: bool


def only_object(text: str) -> dict[str, JsonValue] | None:
    """The object that the text is; None if it is anything else, or has words around the object."""
    return next((found.value for found in objects_in(text) if found.is_whole_text), None)


def objects_in(text: str) -> Iterator[FoundObject]:
    """The objects in the text, in order, without those inside of others. Raises nothing, whatever the text.

    Fences, words around, trailing or missing commas, raw newlines, other quotes, unescaped quotes and the want of the last brace are
    mended. One that breaks off in the middle is no object, nor is anything in it: half of what was asked for is not to be done. Behind
    MAX_OBJECT_STARTS beginnings of objects nothing is looked for.
    """
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
    """Whether it can be stored and sent as a JSON object: not too deep, numbers finite, texts whole."""
    try:
        _OBJECT.validate_python(value)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _is_other_json(text: str) -> bool:
    """Whether it is a list, a text, a number: objects in it are parts of a whole."""
    try:
        return not isinstance(_DECODER.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _decoded(text: str, first: int) -> tuple[dict[str, JsonValue], int] | None:
    """The object that begins there, and where it ends, if it is one without mending."""
    try:
        return cast("tuple[dict[str, JsonValue], int]", _DECODER.raw_decode(text, first))
    except (ValueError, RecursionError):
        return None


def _repaired(text: str, first: int) -> tuple[dict[str, JsonValue] | None, int]:
    """The object that begins there, if it can be mended, and where the search goes on."""
    reader = lenient_json.LenientReader(text, first)
    try:
        return reader.object(), reader.position
    except lenient_json.TruncatedError:
        return None, len(text)
    except ValueError:
        return None, reader.position
