"""Finds JSON objects in texts of models, and repairs those that are almost JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, NoReturn, cast

from cantata import bounds
from cantata.values import JsonValue

_START = re.compile(
    r"""\{\s*(?:["'“\u2018}]|[A-Za-z_]\w*\s*:)"""
)  # a key, or the end: `{name}` and `{1, 2}` in prose are not objects
_FIRST_KEY = re.compile(r"""\{\s*["'](\w+)["']\s*:""")
_FENCE = re.compile(r"(?:```[\w-]*)?")
_FENCED = re.compile(r"```[\w-]*\s(.*?)```", re.DOTALL)
_ONLY_FENCED = re.compile(r"\s*```[\w-]*\s(.*?)```\s*", re.DOTALL)
_AFTER = " \n\r\t`}],;"  # models often close once more than they opened

MAX_OBJECT_STARTS = 1000
"""Each start that is not an object costs a scan of all the text before it: a reply of a megabyte, written for that, took over a minute."""

_DECODER = json.JSONDecoder(strict=False)  # raw newlines in texts are allowed


class FoundObject(NamedTuple):
    """An object, and whether it is the whole text, a fence around it aside."""

    value: dict[str, JsonValue]
    is_whole_text: bool


def only_object(text: str, *, is_incomplete: bool = False) -> dict[str, JsonValue] | None:
    """Return the object that the text consists of; None if there is none, or other text around it."""
    return next((found.value for found in objects_in(text, is_incomplete=is_incomplete) if found.is_whole_text), None)


def value_in(text: str) -> JsonValue:
    """Return the JSON value that the text is, or that its only fence contains; else the only object in it. Raises ValueError."""
    try:
        return cast(JsonValue, json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        fences = _FENCED.findall(text)
        if len(fences) == 1:
            with suppress(ValueError, RecursionError):
                return cast(JsonValue, json.loads(fences[0], parse_constant=_refuse_constant))
        found = list(objects_in(text))
        if len(found) != 1:
            raise ValueError(f"the reply is not JSON ({error})") from error
        return found[0].value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def objects_in(text: str, *, is_incomplete: bool = False) -> Iterator[FoundObject]:
    """Yield the outermost objects in the text, in order. Raises nothing, whatever the text.

    Repaired are fences, surrounding words, trailing or missing commas, raw newlines, other quotes, unescaped quotes and a missing last
    brace, unless the text is known to be incomplete. A truncated object is skipped with all that is in it: half of a request must not be
    executed. The search ends after MAX_OBJECT_STARTS possible starts of objects."""
    for first, value, end in _readings(text, is_incomplete):
        if value is not None and is_object(value):
            yield FoundObject(value, is_whole_text=_is_at_start(text, first) and not text[end:].strip(_AFTER))


def is_truncated(text: str, keys: Collection[str], *, is_incomplete: bool = False) -> bool:
    """Return whether the text ends in the middle of an object that it begins with, a fence aside, or whose first key is one of these.

    In a text that is known to be incomplete, an object without its last brace is truncated too.
    """
    cut = next(
        (first for first, value, end in _readings(text, is_incomplete) if value is None and end == len(text)), None
    )
    if cut is None:
        return False
    key = _FIRST_KEY.match(text, cut)
    return _is_at_start(text, cut) or (key is not None and key[1] in keys)


def _readings(text: str, is_incomplete: bool) -> Iterator[tuple[int, dict[str, JsonValue] | None, int]]:
    """Yield for each start of an outermost object its position, the object, if it can be read, and the position behind it.

    For a truncated object that is the end of the text.
    """
    position = 0
    for _ in range(0 if _is_other_json(text) else MAX_OBJECT_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        value, position = _decoded(text, start.start()) or _repaired(text, start.start(), is_incomplete)
        yield start.start(), value, position


def _is_at_start(text: str, first: int) -> bool:
    """Return whether nothing but a fence comes before a position."""
    return bool(_FENCE.fullmatch(text[:first].strip()))


def is_object(value: object) -> bool:
    """Return whether a value can be stored and sent as a JSON object: not too deep, numbers finite, texts valid UTF-8."""
    return isinstance(value, dict) and bounds.find(value) is None


def _is_other_json(text: str) -> bool:
    """Return whether the text, a fence around it aside, is JSON other than an object: objects in a list or text are parts of it."""
    fenced = _ONLY_FENCED.fullmatch(text)
    try:
        return not isinstance(_DECODER.decode((fenced[1] if fenced else text).strip()), dict)
    except (ValueError, RecursionError):
        return False


def _decoded(text: str, first: int) -> tuple[dict[str, JsonValue], int] | None:
    """Return the object that begins there and its end, if it needs no repair."""
    try:
        return cast("tuple[dict[str, JsonValue], int]", _DECODER.raw_decode(text, first))
    except (ValueError, RecursionError):
        return None


def _repaired(text: str, first: int, is_incomplete: bool) -> tuple[dict[str, JsonValue] | None, int]:
    """Return the object that begins there, if it can be repaired, and the position at which the search continues."""
    reader = LenientReader(text, first, is_incomplete=is_incomplete)
    try:
        return reader.object(), reader.position
    except TruncatedError:
        return None, len(text)
    except ValueError:
        return None, reader.position


MAX_NESTING = 100
"""Levels of nesting that are read."""

_CLOSING_QUOTES = {'"': '"', "'": "'", "“": "”", "\u2018": "\u2019"}
# All repetitions are possessive (`*+`): a pattern that gives back one space at a time takes minutes for a reply that ends in spaces.
_IN_QUOTES = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|[“\u2018][^“\u2018”\u2019]*+[”\u2019])"""
_KEY = rf"(?:{_IN_QUOTES}|[A-Za-z_][\w-]*+)"
_LAST_BRACE = re.compile(r"\}\s*+(?:```\s*+)?+\Z")
_END = re.compile(r"\s*+(?:```\s*+)?+\Z")

_TRUNCATED_KEY = r"""["'“\u2018]\w*+["'”\u2019]?+\s*+\Z"""
_AFTER_MEMBER = re.compile(rf"\s*+(?:\}}|\Z|```\s*+\Z|,?+\s*+{_KEY}\s*+:|,\s*+(?:\}}|{_TRUNCATED_KEY}))", re.DOTALL)
_AFTER_ITEM = re.compile(r"""\s*+(?:\]|,\s*["'“\u2018{\[\]\-\dtfnTFN])""")

_MEMBER = re.compile(rf"{_KEY}(?=\s*+:)", re.DOTALL)
_COLON = re.compile(r"\s*:\s*")
_SCALAR = re.compile(
    r"(?:-?[\d.]+(?:[eE][+-]?\d+)?|true|false|null|True|False|None)(?=\s*+[,}\]]|\s++[\"'“\u2018]|\s*+```\s*+\Z)"
)
_FRAGMENT = re.compile(
    r"""(?:["'“\u2018][^"'”\u2019]*+["'”\u2019]?+\s*+|[\w.+-]*+)\Z"""
)  # of a key or a value, at the end of the text
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_SPACE = re.compile(r"\s*")
_SPACE_OR_COMMAS = re.compile(r"[\s,]*")
_ESCAPE_OR_QUOTE = re.compile(r'\\u[0-9a-fA-F]{4}|\\.|"', re.DOTALL)


class TruncatedError(ValueError):
    """The text ends in the middle of the object."""


class LenientReader:
    """A reader of objects that are almost JSON; `position` is how far it has read, also after an error.

    Repair libraries were tried (json-repair 0.64): in an object with one comma too many they drop the newline at the end of a text, split
    characters outside the basic plane and lose backslashes. Arguments of tools are code and file contents, so this reader keeps texts
    unchanged."""

    def __init__(self, text: str, position: int = 0, *, is_incomplete: bool = False) -> None:
        self._text = text
        self.position = position
        self._is_incomplete = is_incomplete

    def object(self, depth: int = 1) -> dict[str, JsonValue]:
        """Read the object that begins here; the last brace of the outermost one may be missing, unless the text is incomplete.

        Beyond JSON it may have trailing or missing commas, other quotes or none for keys, quotes and newlines in texts without a backslash,
        and Python's True, False and None. Raises TruncatedError if it is truncated, else ValueError if it cannot be read.
        """
        self._open("{", depth)
        members: dict[str, JsonValue] = {}
        separator = ""
        while not self._take("}"):
            if depth == 1 and members and self._may_end(separator):
                break
            key = self._key()
            self._match(_COLON)
            members[key] = self._value(depth, _AFTER_MEMBER)
            separator = self._match(_SPACE_OR_COMMAS)
        return members

    def _may_end(self, separator: str) -> bool:
        """Return whether only the last brace is missing: after a comma at the very end of the text there was more to come."""
        is_cut = self._is_incomplete or ("," in separator and self.position == len(self._text))
        return not is_cut and _END.match(self._text, self.position) is not None

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
        has_quotes = False
        for mark in shut.finditer(self._text, first):
            is_quote = mark[0][0] != "\\"
            if is_quote and after.match(self._text, mark.end()):
                self.position = mark.end()
                return _unescaped(self._text[first : mark.start()])
            has_quotes = has_quotes or is_quote
        if has_quotes and (last := _LAST_BRACE.search(self._text, first)):
            self.position = last.start()
            raise ValueError("something else than a member follows a text")
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
            if _FRAGMENT.match(self._text, self.position):
                raise TruncatedError("the object has no end")
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
