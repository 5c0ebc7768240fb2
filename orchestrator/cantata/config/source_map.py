"""Source maps: values of a text with the line of each, built while the text is read; and paths to values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from cantata.bounds import MAX_DIGITS, READ_DEPTH, is_text
from cantata.errors import ConfigError, Fault
from cantata.values import JsonValue

KeyPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

TEXT_VALUE = 64  # characters of a text that count as one more value
MAX_VALUES = 1_000_000  # an alias counts as the values that it refers to; a request of 10,000 nodes has about 150,000

_CONSTANTS: dict[str, JsonValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_PLAIN_KEY = re.compile(r"[^\s.'\"\[\]]+")


@dataclass(slots=True)
class SourceNode:
    """A mapping, a list or the whole text, with the line it begins on and those of its entries."""

    value: JsonValue
    line: int
    lines: dict[str | int, int] = field(default_factory=dict)
    inside: dict[str | int, SourceNode] = field(default_factory=dict)
    """The nodes of the entries that are mappings and lists."""
    size: int = 1
    """The number of values in it."""


@dataclass(slots=True)
class _OpenNode:
    """A mapping or list that is being read."""

    node: SourceNode
    anchor: str | None
    key: str | None = None
    key_line: int = 0
    key_merges: bool = False
    merged: list[SourceNode] = field(default_factory=list)


@dataclass(slots=True)
class SourceMapBuilder:
    """Builder of a source map: the parser calls it in the order of the text; `finish` returns the root or raises ConfigError."""

    source: str
    faults: list[Fault] = field(default_factory=list)
    _root: SourceNode | None = None
    _stack: list[_OpenNode] = field(default_factory=list)
    _anchors: dict[str, tuple[JsonValue, SourceNode | None]] = field(default_factory=dict)

    def open(self, empty: dict[str, JsonValue] | list[JsonValue], line: int, *, anchor: str | None = None) -> None:
        """Begin a mapping or list."""
        if len(self._stack) == READ_DEPTH:
            self.stop(f"it is nested deeper than {READ_DEPTH} levels", line)
        self._stack.append(_OpenNode(SourceNode(empty, line), anchor))

    def close(self) -> None:
        """End the innermost mapping or list."""
        done = self._stack.pop()
        for merged in done.merged:
            for key, line in merged.lines.items():
                if key not in done.node.lines:
                    self._put(done.node, key, value_at(merged.value, key), merged.inside.get(key), line)
        self._add(done.node.value, done.node, done.node.line, done.anchor)

    def plain(self, text: str, line: int, *, anchor: str | None = None) -> None:
        """Add an unquoted value: null, true, false, a number or a text."""
        value: JsonValue = text
        if text in _CONSTANTS:
            value = _CONSTANTS[text]
        elif text == "<<" and self._wants_key():
            self._stack[-1].key_merges = True
        elif _NUMBER.fullmatch(text):
            try:
                value = number(text)
            except ValueError as error:
                self.fault(str(error), line)
        self._add(value, None, line, anchor)

    def text(self, value: str, line: int, *, anchor: str | None = None) -> None:
        """Add a quoted text."""
        if not is_text(value):
            self.fault("the text has half of a surrogate pair, which is not a character", line)
        self._add(value, None, line, anchor)

    def alias(self, name: str, line: int) -> None:
        """Add the value of an alias."""
        if name not in self._anchors:
            self.fault(f"the alias *{name} has no anchor &{name} that ends before it", line)
        value, node = self._anchors.get(name, (None, None))
        self._add(value, node, line, None)

    def fault(self, message: str, line: int) -> None:
        """Record a fault of the next value."""
        parts = (len(top.node.value) if isinstance(top.node.value, list) else top.key for top in self._stack)
        self.faults.append(
            Fault(message, where=path_text(tuple(part for part in parts if part is not None)), line=line)
        )

    def stop(self, message: str, line: int) -> NoReturn:
        """Record a fault of the next value, and stop reading. Raises ConfigError."""
        self.fault(message, line)
        raise ConfigError(self.faults, source=self.source)

    def finish(self) -> SourceNode:
        """Return the root; null if the text is empty. Raises ConfigError with every fault."""
        if self.faults:
            raise ConfigError(self.faults, source=self.source)
        return self._root or SourceNode(None, 1)

    def _wants_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].node.value, dict) and self._stack[-1].key is None

    def _add(self, value: JsonValue, node: SourceNode | None, line: int, anchor: str | None) -> None:
        """Add a complete value: the document, the next item of a list, the next key of a mapping, or the value of its last key."""
        if anchor is not None:
            self._anchors[anchor] = (value, node)
        if not self._stack:
            self._root = node or SourceNode(value, line)
            return
        top = self._stack[-1]
        if isinstance(top.node.value, list):
            self._put(top.node, len(top.node.value), value, node, line)
        elif top.key is None:
            top.key, top.key_line = self._key(value, line), line
            if top.key in top.node.lines:
                self.fault(f"the key {top.key!r} occurs twice; it is also on line {top.node.lines[top.key]}", line)
        else:
            if top.key_merges:
                top.merged += self._mergeable_nodes(value, node, line)
            else:
                self._put(top.node, top.key, value, node, top.key_line)
            top.key, top.key_merges = None, False

    def _put(self, into: SourceNode, key: str | int, value: JsonValue, node: SourceNode | None, line: int) -> None:
        if isinstance(into.value, list):
            into.value.append(value)
        elif isinstance(into.value, dict) and isinstance(key, str):
            into.value[key] = value
        into.lines[key] = line
        into.size += 1 + (len(value) // TEXT_VALUE if isinstance(value, str) else 0)
        if node is not None:
            into.inside[key] = node
            into.size += node.size
        if into.size > MAX_VALUES:
            self.stop(f"it has more than {MAX_VALUES:,} values; an alias counts as the values that it refers to", line)

    def _key(self, key: JsonValue, line: int) -> str:
        if isinstance(key, str):
            return key
        shown = "a mapping or list" if isinstance(key, (dict, list)) else json.dumps(key)
        self.fault(f"a key must be a text, not {shown}; put it in quotes", line)
        return json.dumps(key)

    def _mergeable_nodes(self, value: JsonValue, node: SourceNode | None, line: int) -> list[SourceNode]:
        if node is not None and isinstance(value, dict):
            return [node]
        nodes = list(node.inside.values()) if node else []
        if node is None or len(nodes) != len(node.lines) or not all(isinstance(entry.value, dict) for entry in nodes):
            self.fault("'<<' takes a mapping or a list of mappings", line)
            return []
        return nodes


def path_text(path: KeyPath, data: JsonValue = None) -> str:
    """Return a path as text: `agents.analyst.instructions[0]`; list items with an id show it: `nodes[3] 'fetch'.kind`."""
    words = ""
    for part in path:
        data = value_at(data, part)
        if isinstance(part, str):
            words += ("." if words else "") + (part if _PLAIN_KEY.fullmatch(part) else repr(part))
            continue
        words += f"[{part}]"
        own_id = value_at(data, "node_id") or value_at(data, "id")
        if own_id and isinstance(own_id, str):
            words += f" {own_id!r}"
    return words


def value_at(data: JsonValue, part: str | int) -> JsonValue:
    """Return the value at a key or index; None if there is none."""
    if isinstance(data, dict) and isinstance(part, str):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return None


def with_value(data: JsonValue, path: KeyPath, value: JsonValue) -> JsonValue:
    """Return a copy of the data with another value at this path, which leads through mappings and lists that exist."""
    if not path:
        return value
    key, *rest = path
    if isinstance(data, dict) and isinstance(key, str):
        return {**data, key: with_value(data[key], tuple(rest), value)}
    if isinstance(data, list) and isinstance(key, int):
        return [*data[:key], with_value(data[key], tuple(rest), value), *data[key + 1 :]]
    return data


def find(data: JsonValue, pattern: str) -> Iterator[tuple[KeyPath, JsonValue]]:
    """Return the paths and values that match a pattern such as `agents.*.instructions.*`."""
    found: list[tuple[KeyPath, JsonValue]] = [((), data)]
    for part in pattern.split("."):
        found = [((*path, key), value) for path, data in found for key, value in _entries(data) if part in ("*", key)]
    return iter(found)


def _entries(data: JsonValue) -> Iterable[tuple[str | int, JsonValue]]:
    if isinstance(data, dict):
        return ((key, value) for key, value in data.items())
    return enumerate(data) if isinstance(data, list) else ()


def number(digits: str) -> int | float:
    """Parse a JSON number. Raises ValueError if it is too large."""
    is_whole = digits.lstrip("-").isdecimal()
    value = int(digits) if is_whole and len(digits.lstrip("-")) <= MAX_DIGITS else float(digits)
    if abs(value) == float("inf") or (is_whole and isinstance(value, float)):
        raise ValueError(f"the number {digits[:20]}{'...' * (len(digits) > 20)} is too large")
    return value
