"""A reader of objects that are almost JSON, as models write them.

Repair libraries were tried (json-repair 0.64): in an object with one comma too many they drop the newline at the end of a text, split
characters outside the basic plane and lose backslashes. Arguments of tools are code and file contents, so this reader keeps texts
unchanged."""

from __future__ import annotations

import json
import re
from typing import cast

from cantata.models.values import JsonValue

MAX_NESTING = 100
"""Levels of nesting that are read."""

_CLOSING_QUOTES = {'"': '"', "'": "'", "“": "”", "\u2018": "\u2019"}
_IN_QUOTES = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[“\u2018][^“\u2018”\u2019]*[”\u2019])"""
_KEY = rf"(?:{_IN_QUOTES}|[A-Za-z_][\w-]*)"
_END = re.compile(r"\s*(?:```)?\s*\Z")

_AFTER_MEMBER = re.compile(rf"\s*(?:\}}|\Z|```\s*\Z|,?\s*{_KEY}\s*:|,\s*\}})", re.DOTALL)
_AFTER_ITEM = re.compile(r"""\s*(?:\]|,\s*["'“\u2018{\[\]\-\dtfnTFN])""")

_MEMBER = re.compile(rf"{_KEY}(?=\s*:)", re.DOTALL)
_COLON = re.compile(r"\s*:\s*")
_SCALAR = re.compile(r"(?:-?[\d.]+(?:[eE][+-]?\d+)?|true|false|null|True|False|None)(?=\s*[,}\]]|\s+[\"'“\u2018])")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_SPACE = re.compile(r"\s*")
_SPACE_OR_COMMAS = re.compile(r"[\s,]*")
_ESCAPE_OR_QUOTE = re.compile(r'\\u[0-9a-fA-F]{4}|\\.|"', re.DOTALL)


class TruncatedError(ValueError):
    """The text ends in the middle of the object."""


class LenientReader:
    """A reader of the objects in a text; `position` is how far it has read, also after an error."""

    def __init__(self, text: str, position: int = 0) -> None:
        self._text = text
        self.position = position

    def object(self, depth: int = 1) -> dict[str, JsonValue]:
        """Read the object that begins here; the last brace of the outermost one may be missing.

        Beyond JSON it may have trailing or missing commas, other quotes or none for keys, quotes and newlines in texts without a backslash,
        and Python's True, False and None. Raises TruncatedError if it is truncated, else ValueError if it cannot be read.
        """
        self._open("{", depth)
        members: dict[str, JsonValue] = {}
        while not self._take("}"):
            if depth == 1 and members and _END.match(self._text, self.position):
                break
            key = self._key()
            self._match(_COLON)
            members[key] = self._value(depth, _AFTER_MEMBER)
            self._match(_SPACE_OR_COMMAS)
        return members

    def _list(self, depth: int) -> list[JsonValue]:
        self._open("[", depth)
        items: list[JsonValue] = []
        while not self._take("]"):
            items.append(self._value(depth, _AFTER_ITEM))
            self._match(_SPACE_OR_COMMAS)
        return items

    def _value(self, depth: int, after: re.Pattern[str]) -> JsonValue:
        match self._next():
            case "{":
                return self.object(depth + 1)
            case "[":
                return self._list(depth + 1)
            case mark if mark in _CLOSING_QUOTES:
                return self._quoted(after)
        plain = self._match(_SCALAR)
        return cast(JsonValue, json.loads(_PYTHON.get(plain, plain)))

    def _key(self) -> str:
        key = self._match(_MEMBER)
        return _unescaped(key[1:-1]) if key[0] in _CLOSING_QUOTES else key

    def _quoted(self, after: re.Pattern[str]) -> str:
        """Read the quoted text that begins here: it ends at the first quote that is followed by a match of `after`."""
        first = self.position + 1
        shut = re.compile(rf"\\.|{_CLOSING_QUOTES[self._next()]}", re.DOTALL)
        for mark in shut.finditer(self._text, first):
            if mark[0][0] != "\\" and after.match(self._text, mark.end()):
                self.position = mark.end()
                return _unescaped(self._text[first : mark.start()])
        raise TruncatedError("a text has no end")

    def _next(self) -> str:
        if self.position >= len(self._text):
            raise TruncatedError("the object has no end")
        return self._text[self.position]

    def _open(self, mark: str, depth: int) -> None:
        if not self._take(mark) or depth > MAX_NESTING:
            raise ValueError(f"expected {mark!r}")
        self._match(_SPACE)

    def _take(self, mark: str) -> bool:
        has = self._text.startswith(mark, self.position)
        self.position += has
        return has

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.position)
        if found is None:
            self._next()
            raise ValueError("neither a key nor a value")
        self.position = found.end()
        return found[0]


def _unescaped(raw: str) -> str:
    """Return the text with its escapes decoded; a backslash that escapes nothing stays."""
    return cast(str, json.loads(f'"{_ESCAPE_OR_QUOTE.sub(_escaped, raw)}"', strict=False))


def _escaped(mark: re.Match[str]) -> str:
    odd = mark[0]
    if odd == '"':
        return '\\"'
    if odd == "\\'":
        return "'"
    return odd if len(odd) > 2 or odd[1] in '"\\/bfnrt' else f"\\{odd}"
