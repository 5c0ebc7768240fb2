"""Translation of LangSwarm's references into expressions of chains: `${context.step_outputs.read.title}`, `${user_input}`.

A value that is exactly one reference keeps its type. Within a text, the value of a reference becomes text: null as '', anything but a text
as JSON. `{{name}}` is a reference too, if the name means something here and the text has no `${...}`. Every path starts at the root and is
quoted (`$."read"."title"`), so an expression means the same in every context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cantata.text.suggestions import did_you_mean, hint, nearest
from cantata.values import JsonValue

USER_INPUT = ("user_input", "user_query", "input")
"""The names of the user's input."""

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_TEMPLATE = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")
_QUOTED = re.compile(r"""(["'])(.*)\1""")
_PART = re.compile(r"""\.?(?:([\w-]+)|\[(-?\d{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\])""")
_READ = re.compile(r'\$\.("(?:[^"\\]|\\.)*")')
_VARIABLES = ("workflow_variables", "variables")
_MISTYPED = 0.75
"""The similarity from which an unknown name under `context` is a known one mistyped."""

Path = Sequence[str | int]


class UnreadableError(ValueError):
    """A reference or condition is not valid; the message says why, and which names are known."""


@dataclass(frozen=True)
class Scope:
    """The meaning of names at one location of a chain."""

    steps: Mapping[str, str] = field(default_factory=dict)
    """Step, `output_key` or loop variable → the expression of its value."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Agent → the expression of its most recent earlier step."""
    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    """Declared input → its default."""
    before: str = "null"
    """The expression of `previous_output`."""
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Step above → the expression of its output, which `context.step_outputs` has."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Step → another name of its output (`output.format`)."""

    def expression(self, reference: str) -> str:
        """Return the expression of the text between `${` and `}`; `a || b` is the first that is not null. Raises UnreadableError."""
        first, *others = reference.split("||")
        found = [self._path(first), *map(self._alternative, others)]
        return found[0] if len(found) == 1 else f"not_null({', '.join(found)})"

    def _alternative(self, text: str) -> str:
        """Return the expression of what follows `||`: a constant as JSON, or a path."""
        quoted = _QUOTED.fullmatch(text.strip())
        try:
            return literal(quoted[2] if quoted else json.loads(text))
        except ValueError:
            return self._path(text)

    def knows(self, name: str) -> bool:
        """Return whether a name without braces can only be a reference."""
        return name in self.steps or name in self.agents or name == "context"

    def _path(self, reference: str) -> str:
        parts = parts_of(reference)
        if parts[0] == "context":
            return self._context_path(parts[1:], reference)
        if parts[0] == "step_outputs" and parts[0] not in self.steps:
            return self._context_path(parts, reference)
        known = self._known(parts)
        if known is None:
            names = [*self.steps, *self.agents, *self.variables, *USER_INPUT, "previous_output"]
            raise UnreadableError(
                f"{braced(reference)}: there is no name {parts[0]!r}{did_you_mean(str(parts[0]), names)}"
            )
        return known

    def _context_path(self, parts: Path, reference: str) -> str:
        match list(parts):
            case []:
                raise UnreadableError(f"{braced(reference)} is incomplete; write such as ${{context.user_input}}")
            case ["step_outputs", str(step), *rest]:
                if step not in self.steps:
                    raise UnreadableError(
                        f"{braced(reference)}: there is no step {step!r}{did_you_mean(step, self.steps)}"
                    )
                return self._output(step, rest)
            case ["step_outputs"]:
                return (
                    "{" + ", ".join(f"{_quoted(step)}: {value}" for step, value in self.earlier.items()) + "}"
                    if self.earlier
                    else "`{}`"
                )
            case ["step_outputs", *_]:
                raise UnreadableError(f"{braced(reference)} names no step")
            case [str(section), str(name), *rest] if section in _VARIABLES:
                self._check_spelling(name, self.variables, reference)
                return self._variable(name) + _path(rest)
        known = self._known(parts)
        if known is None:
            names = [*self.variables, *USER_INPUT, "previous_output", "step_outputs", *_VARIABLES]
            self._check_spelling(str(parts[0]), names, reference)
        return known or _root_path("input", parts)

    def _check_spelling(self, name: str, known: Collection[str], reference: str) -> None:
        near = None if name in known else nearest(name, known, cutoff=_MISTYPED)
        if near:
            raise UnreadableError(f"{braced(reference)}: there is no name {name!r}{hint(near)}")

    def undeclared(self, reference: str) -> str | None:
        """Return the name that a reference reads from `context` although no input of it is declared; None for any other reference."""
        match [] if "||" in reference else list(parts_of(reference)):
            case ["context", str(section), str(name), *_] if section in _VARIABLES:
                return None if name in self.variables else name
            case ["context", name, *rest] if name != "step_outputs":
                return None if self._known([name, *rest]) else str(name)
        return None

    def _known(self, parts: Path) -> str | None:
        name, rest = str(parts[0]), _path(parts[1:])
        if name in self.steps:
            return self._output(name, parts[1:])
        if name in USER_INPUT:
            return _root_path("input", [name]) + rest
        if name == "previous_output":
            return self.before + rest
        if name in self.agents:
            return self.agents[name] + rest
        return self._variable(name) + rest if name in self.variables else None

    def _output(self, step: str, rest: Path) -> str:
        """Return the expression of a step's output, or a part of it; `output.format` is a name of the whole if that has no such field."""
        value = self.steps[step]
        if rest and rest[0] == self.formats.get(step):
            value, rest = f"not_null({value}{_path(rest[:1])}, {value})", rest[1:]
        return value + _path(rest)

    def _variable(self, name: str) -> str:
        given, default = _root_path("input", [name]), self.variables.get(name)
        return given if default is None else f"not_null({given}, {literal(default)})"


@dataclass(frozen=True)
class Rendered:
    """A value of the file, or its expression if it has references."""

    value: JsonValue = None
    expression: str | None = None

    @property
    def text(self) -> str:
        """The expression, with or without references."""
        return literal(self.value) if self.expression is None else self.expression


def render(value: JsonValue, scope: Scope) -> Rendered:
    """Return a value with references as an expression; also within mappings and lists. Raises UnreadableError."""
    if isinstance(value, str):
        return _text(value, scope)
    if isinstance(value, dict):
        for key in value:
            check_key(key)
        entries = {key: render(each, scope) for key, each in value.items()}
        if all(each.expression is None for each in entries.values()):
            return Rendered(value)
        return Rendered(
            expression="{" + ", ".join(f"{json.dumps(key)}: {each.text}" for key, each in entries.items()) + "}"
        )
    if isinstance(value, list):
        items = [render(each, scope) for each in value]
        if all(each.expression is None for each in items):
            return Rendered(value)
        return Rendered(expression="[" + ", ".join(each.text for each in items) + "]")
    return Rendered(value)


def check_key(key: str) -> None:
    """Raise UnreadableError for a reference in the key of a mapping, which would not be resolved."""
    if "${" in key:
        raise UnreadableError(f"the key {key!r} has a reference; only values may have references")


def is_reference(value: JsonValue) -> bool:
    """Return whether a value is exactly one reference, and so keeps its type."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value.strip()) is not None


def step_value(node_id: str) -> str:
    """Return the expression of a node's output."""
    return f"$.{_quoted(node_id)}"


def literal(value: JsonValue) -> str:
    """Return the expression of a constant."""
    return "`" + json.dumps(value, ensure_ascii=False).replace("`", "\\u0060") + "`"


def as_text_expression(expression: str) -> str:
    """Return the expression of a value within a text."""
    return f"to_string(not_null({expression}, ''))"


def reads(expression: str) -> set[str]:
    """Return the names that an expression of this module reads from the root. Quotes in constants are escaped, so they match no path."""
    return {json.loads(name) for name in _READ.findall(expression)}


def parts_of(reference: str) -> Path:
    """Return the names and indexes of a path. Raises UnreadableError."""
    text = reference.strip()
    if not text:
        raise UnreadableError("${} has no name")
    parts, position = [], 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None or (found[0].startswith(".") == (position == 0) and found[0][0] != "["):
            raise UnreadableError(
                f"{braced(reference)} is no path such as ${{step.field[0]}}; conditions and sums stand outside the braces"
            )
        name, index, *keys = found.groups()
        parts.append(int(index) if index is not None else next(part for part in (name, *keys) if part is not None))
        position = found.end()
    return parts


def split_references(text: str) -> Iterator[str | re.Match[str]]:
    """Yield the pieces of a text: literal text and references."""
    position = 0
    for gap in _REFERENCE.finditer(text):
        yield text[position : gap.start()]
        yield gap
        position = gap.end()
    yield text[position:]


def braced(reference: str) -> str:
    """Return a reference in its source form."""
    return "${" + reference + "}"


def with_dollars(text: str, scope: Scope) -> str:
    """Return a text with `${name}` for each `{{name}}` that means something, unless it has `${...}` anyway."""
    if "${" in text:
        return text
    return _TEMPLATE.sub(lambda found: braced(found[1]) if _is_reference(found[1], scope) else found[0], text)


def unresolved(value: JsonValue, scope: Scope) -> list[str]:
    """Return the `{{name}}` in a text that mean nothing, and stay as they are."""
    found = _TEMPLATE.finditer(value) if isinstance(value, str) else ()
    return [each[0] for each in found if not _is_reference(each[1], scope)]


def undeclared(value: JsonValue, scope: Scope) -> list[str]:
    """Return the names in a text that can be rendered that read inputs which are not declared."""
    found = _REFERENCE.finditer(with_dollars(value, scope)) if isinstance(value, str) else ()
    return [name for each in found if (name := scope.undeclared(each[1]))]


def _text(text: str, scope: Scope) -> Rendered:
    text = with_dollars(text, scope)
    alone = _REFERENCE.fullmatch(text.strip())
    if alone:
        return Rendered(expression=scope.expression(alone[1]))
    pieces = [piece for piece in split_references(text) if piece]
    for piece in pieces:
        if isinstance(piece, str):
            _check_braces(piece, scope)
    if not any(isinstance(piece, re.Match) for piece in pieces):
        return Rendered(text)
    parts = [
        literal(piece) if isinstance(piece, str) else as_text_expression(scope.expression(piece[1])) for piece in pieces
    ]
    return Rendered(expression=f"join('', [{', '.join(parts)}])")


def _check_braces(text: str, scope: Scope) -> None:
    """Raise UnreadableError for a text that was meant as a reference, and would not be resolved."""
    if "${" in text:
        raise UnreadableError(
            f"{text[text.index('${') :][:20]!r} is not closed, or contains braces; write a reference such as ${{step.field}}"
        )
    for found in _TEMPLATE.finditer(text):
        if _is_reference(found[1], scope):
            raise UnreadableError(
                f"{found[0]!r} stands beside ${{...}} and would not be resolved; write ${{{found[1]}}}"
            )


def _is_reference(text: str, scope: Scope) -> bool:
    try:
        scope.expression(text)
    except UnreadableError:
        return False
    return True


def _root_path(name: str, path: Path) -> str:
    return f"$.{_quoted(name)}" + _path(path)


def _path(parts: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in parts)


def _quoted(name: str) -> str:
    return json.dumps(name)
