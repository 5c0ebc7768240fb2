"""Reader of YAML and JSON texts with the line of every value.

JSON is read by the json library, and its lines are computed only when a fault is reported. YAML is read as YAML 1.2 without its surprises:
only null, true, false and numbers written as in JSON are not texts, so `on`, `yes`, `2026-01-01`, `1:30` and `010` are texts. Keys are
texts and unique; tags other than `!!str` are rejected; anchors, aliases and `<<` work, up to a size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import yaml

from cantata.bounds import READ_DEPTH, is_text
from cantata.config.source_map import MAX_VALUES, KeyPath, SourceMapBuilder, SourceNode, number, path_text
from cantata.errors import ConfigError, Fault
from cantata.values import JsonValue

_YAML = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml is eight times as fast, but not in every build of PyYAML
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_JSON_START = re.compile(r'\s*[{\["]')
_JSON_TOKEN = re.compile(r'[{}\[\]:,]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}\[\]:,"]+')
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_TOO_DEEP = f"it is nested deeper than {READ_DEPTH} levels"


@dataclass(frozen=True)
class Document:
    """The data of a text. A document made of `data` alone, such as a request from Python, has no lines."""

    data: JsonValue
    source: str = ""
    """The name of the file, for messages."""
    source_map: Callable[[], SourceNode] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _root(self) -> SourceNode | None:
        return self.source_map() if self.source_map else None

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the key or list item at `path`, or of the innermost container that exists."""
        node = self._root
        if node is None:
            return None
        line = node.line
        for part in path:
            line = node.lines.get(part, line)
            if part not in node.inside:
                break
            node = node.inside[part]
        return line

    def fault(self, path: KeyPath, message: str) -> Fault:
        """Return a fault of the value at `path`."""
        return Fault(message, where=path_text(path, self.data), line=self.line(path))


def parse(text: str, *, source: str = "") -> Document:
    """Parse a text. Raises ConfigError with the faults of its syntax."""
    text = text.removeprefix("\ufeff")
    if not _JSON_START.match(text):
        return _parse_yaml(text, source)
    try:
        return _parse_json(text, source)
    except json.JSONDecodeError as error:
        return _parse_as_yaml_after_all(text, source, error)


def parse_json(text: str, *, source: str = "") -> Document:
    """Parse a text that must be JSON, such as the body of a request. Raises ConfigError, with the code `no_json` if it is not JSON."""
    try:
        return _parse_json(text.removeprefix("\ufeff"), source)
    except json.JSONDecodeError as error:
        raise ConfigError([_json_fault(error)], source=source, code="no_json") from error


# JSON


def _json_fault(error: json.JSONDecodeError) -> Fault:
    return Fault(f"this is not JSON: {error.msg} (column {error.colno})", line=error.lineno)


def _parse_json(text: str, source: str) -> Document:
    _check_size(text, source)
    odd = []  # values that the json library accepts and we reject; the slow reader finds their lines

    def pairs(entries: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        mapping = dict(entries)
        if len(mapping) != len(entries):
            odd.append("a key twice")
        return mapping

    def digits(text: str) -> int | float | None:
        try:
            return number(text)
        except ValueError:
            odd.append(text)
            return None

    try:
        data: JsonValue = json.loads(
            text, object_pairs_hook=pairs, parse_float=digits, parse_int=digits, parse_constant=odd.append
        )
    except RecursionError:
        raise ConfigError([Fault(_TOO_DEEP)], source=source) from None
    if odd or _is_deep(data) or (_SURROGATE.search(text) and not is_text(json.dumps(data, ensure_ascii=False))):
        _map_json(text, source)
    return Document(data, source, partial(_map_json, text, source))


def _check_size(text: str, source: str) -> None:
    """Reject JSON with too many values before any is built: `[[],[],...]` takes fifty times its size in memory. Raises ConfigError."""
    if _values_in(text) > MAX_VALUES and _values_in(_STRING.sub('""', text)) > MAX_VALUES:
        raise ConfigError(f"it has more than {MAX_VALUES:,} values", source=source)


def _values_in(text: str) -> int:
    """Return a lower bound of the number of values, provided that no text contains commas or brackets."""
    return text.count(",") + text.count("[") + text.count("{")


def _map_json(text: str, source: str) -> SourceNode:
    """Read again, slowly and with lines, a text that the json library has accepted."""
    builder = SourceMapBuilder(source)
    line, last = 1, 0
    for match in _JSON_TOKEN.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        match match.group():
            case "{":
                builder.open({}, line)
            case "[":
                builder.open([], line)
            case "}" | "]":
                builder.close()
            case ":" | ",":
                pass
            case "NaN" | "Infinity" | "-Infinity" as word:
                builder.fault(f"{word} is not a JSON value; write null or a number", line)
                builder.plain("null", line)
            case token if token.startswith('"'):
                builder.text(json.loads(token), line)
            case word:
                builder.plain(word, line)
    return builder.finish()


# YAML


def _parse_as_yaml_after_all(text: str, source: str, error: json.JSONDecodeError) -> Document:
    """Parse a text that is not JSON as YAML, which may begin with a brace or quote too. Of the two errors, raise the one further on."""
    try:
        return _parse_yaml(text, source)
    except ConfigError as yaml_error:
        if error.pos < len(text.rstrip()) and (yaml_error.faults[0].line or 0) > error.lineno:
            raise
        raise ConfigError([_json_fault(error)], source=source) from error


def _parse_yaml(text: str, source: str) -> Document:
    try:
        root = _map_yaml(text, source)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_fault(error, text)], source=source) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ConfigError(
            "the text has a character that YAML does not allow, such as a control character", source=source
        ) from error
    if _is_deep(root.value):
        raise ConfigError(_TOO_DEEP, source=source)
    return Document(root.value, source, lambda: root)


def _map_yaml(text: str, source: str) -> SourceNode:
    builder = SourceMapBuilder(source)
    begun = False
    for event in yaml.parse(text, Loader=_YAML):
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.ScalarEvent():
                _check_tag(event.tag, builder, line)
                (builder.plain if event.implicit[0] and not event.tag else builder.text)(
                    event.value, line, anchor=event.anchor
                )
            case yaml.MappingStartEvent():
                _check_tag(event.tag, builder, line)
                builder.open({}, line, anchor=event.anchor)
            case yaml.SequenceStartEvent():
                _check_tag(event.tag, builder, line)
                builder.open([], line, anchor=event.anchor)
            case yaml.CollectionEndEvent():
                builder.close()
            case yaml.AliasEvent():
                builder.alias(str(event.anchor), line)
            case yaml.DocumentStartEvent() if begun:
                builder.stop("a second document begins here; a file holds one", line)
            case yaml.DocumentStartEvent():
                begun = True
    return builder.finish()


def _check_tag(tag: str | None, builder: SourceMapBuilder, line: int) -> None:
    if tag is not None and tag not in _TEXT_TAGS:
        builder.fault(f"the tag {tag.replace('tag:yaml.org,2002:', '!!')} is not supported; leave it out", line)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Fault:
    problem, mark = error.problem or error.context, error.problem_mark or error.context_mark
    if mark is None:
        return Fault(f"this is not YAML: {problem}")
    details = f"column {mark.column + 1}"
    if error.context and error.context_mark and error.context != problem:
        details += f", {error.context} that begins on line {error.context_mark.line + 1}"
    line = "".join(text.split("\n")[mark.line : mark.line + 1])
    hint = "; indent with spaces, not tabs" if "\t" in line[: mark.column + 1] else ""
    return Fault(f"this is not YAML: {problem} ({details}){hint}", line=mark.line + 1)


def _is_deep(data: JsonValue) -> bool:
    level: list[JsonValue] = [data]
    for _ in range(READ_DEPTH):
        level = [
            child
            for value in level
            if isinstance(value, (dict, list))
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    return any(isinstance(value, (dict, list)) for value in level)
