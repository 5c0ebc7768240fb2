"""Translation of LangSwarm's conditions into expressions of chains. They are parsed, never evaluated as Python.

    or          and, `||` or `or` between
    and         not, `&&` or `and` between
    not         `!` or `not` before it, or a comparison
    comparison  value; value OP value; value [not] exists
    OP          ==  !=  >  <  >=  <=  [not] contains  [not] in
    value       ${reference}, 'text', "text", number, true, false, None, [value, ...], (or); bare words are a text

A text with a numeral equals a number; a text 'true' or 'false' equals a boolean. A missing value is None: it equals None only, contains
nothing, and is neither greater nor less than anything; in quotes it also equals ''. A condition that is the same in every run is a fault: a
word that stands alone, or is compared with another constant, was meant as a reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.reference_expressions import (
    Scope,
    UnreadableError,
    literal,
    parts_of,
    render,
    with_dollars,
)

_TOKEN = re.compile(
    r"""
      (?P<space>     \s+ )
    | (?P<reference> \$\{ [^{}]* \} )
    | (?P<text>      ' (?: [^'\\] | \\. )* ' | " (?: [^"\\] | \\. )* " )
    | (?P<symbol>    && | \|\| | == | != | >= | <= | [<>!()\[\],] )
    | (?P<number>    -? (?: \d{1,15} \.? \d{0,15} | \. \d{1,15} ) (?! [\w.-] ) )
    | (?P<word>      [^\s()\[\]!=<>&|,'"$]+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS: Mapping[str, JsonValue] = {**dict.fromkeys(("none", "null")), "true": True, "false": False}
_WORDS = frozenset({"and", "or", "not", "in", "contains", "exists"})
_COMPARISONS = ("==", "!=", ">=", "<=", ">", "<")
_FALSE: list[JsonValue] = ["false", "False", "None", "null", "0", "0.0"]
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,15})(\.\d{1,15})?")
_MAX_DEPTH = 40  # levels of parentheses, lists and negations


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


@dataclass(frozen=True)
class _Value:
    """An operand: a constant, or an expression, which may be a condition already."""

    expression: str
    is_constant: bool = False
    constant: JsonValue = None
    is_condition: bool = False
    is_quoted: bool = False
    """Whether it is quoted, where null is an empty text."""


def condition(text: str, scope: Scope) -> str:
    """Return the expression of a condition. Raises Unreadable."""
    return _Parser(with_dollars(text, scope), scope).read()


def is_empty(expression: str) -> str:
    """Return the condition that a value is missing."""
    return f"{expression} == `null`"


def equals(left: str, constant: JsonValue) -> str:
    """Return the condition that a value equals this constant."""
    if constant is None:
        return f"{left} == `null`"
    if isinstance(constant, bool):
        word = json.dumps(constant)
        return f"contains({literal([word, word.title(), word.upper()])}, to_string({left}))"
    if isinstance(constant, int | float):
        return f"to_number({left}) == {literal(constant)}"
    same = f"{left} == {literal(constant)}"
    constant = _parsed_constant(constant)
    return same if constant is None else f"({same} || {left} == {literal(constant)})"


def contains(whole: str, part: str) -> str:
    """Return the condition that a list has an element, or that a text, or any other value as text, contains a text."""
    of_list = f"type({whole}) == 'array' && contains({whole}, {part})"
    of_text = (
        f"type({whole}) != 'array' && {part} != `null` && contains(to_string(not_null({whole}, '')), to_string({part}))"
    )
    return f"(({of_list}) || ({of_text}))"


def negated(expression: str) -> str:
    """Return the negation of a condition."""
    return f"!({expression})"


def any_of(expressions: Sequence[str]) -> str:
    """Return the condition that one of these holds."""
    return _balanced(expressions, "||")


class _Parser:
    def __init__(self, text: str, scope: Scope) -> None:
        self._text = text
        self._scope = scope
        self._tokens = list(self._scan())
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        if not self._tokens:
            raise UnreadableError("the condition is empty")
        expression = self._truth(self._or())
        if self._at < len(self._tokens):
            raise self._unexpected()
        return expression

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _scan(self) -> list[_Token]:
        tokens, position = [], 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                raise UnreadableError(f"the condition {self._text!r} cannot be read at {self._text[position:][:20]!r}")
            if found.lastgroup != "space":
                tokens.append(_Token(str(found.lastgroup), found[0], position))
            position = found.end()
        return tokens

    def _peek(self, ahead: int = 0) -> _Token:
        location = self._at + ahead
        return self._tokens[location] if location < len(self._tokens) else _Token("end", "", len(self._text))

    def _take(self, *words: str) -> str | None:
        """Consume the next token if it is one of these symbols or words; return its text."""
        token = self._peek()
        found = token.text if token.kind == "symbol" else token.text.lower() if token.kind == "word" else None
        if found not in words:
            return None
        self._at += 1
        return found

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableError(f"the condition is nested more than {_MAX_DEPTH} deep; split it over several steps")
        yield
        self._depth -= 1

    def _unexpected(self) -> UnreadableError:
        token = self._peek()
        what = f"{token.text!r} is not expected there" if token.kind != "end" else "it ends too early"
        return UnreadableError(f"the condition {self._text!r} cannot be read at column {token.column + 1}: {what}")

    # --- grammar ------------------------------------------------------------------------------------------------------

    def _or(self) -> _Value:
        return self._row(self._and, ("||", "or"), "||")

    def _and(self) -> _Value:
        return self._row(self._not, ("&&", "and"), "&&")

    def _row(self, operand: Callable[[], _Value], words: tuple[str, ...], operator: str) -> _Value:
        first = operand()
        if self._peek().text.lower() not in words:
            return first
        row = [self._truth(first)]
        while self._take(*words):
            row.append(self._truth(operand()))
        return _condition(_balanced(row, operator))

    def _not(self) -> _Value:
        if self._take("!", "not"):
            with self._deeper():
                return _condition(negated(self._truth(self._not())))
        return self._comparison()

    def _comparison(self) -> _Value:
        left = self._value()
        operator = self._take(*_COMPARISONS)
        if operator:
            return _condition(_compared(left, operator, self._value()))
        is_not = self._peek().text.lower() == "not" and self._peek(1).text.lower() in ("contains", "in", "exists")
        if is_not:
            self._at += 1
        word = self._take("contains", "in", "exists")
        if word is None:
            return left
        if word == "exists":
            found = negated(is_empty(left.expression))
        else:
            right = self._value()
            whole, part = (left, right) if word == "contains" else (right, left)
            found = _holds(whole, part)
        return _condition(negated(found) if is_not else f"({found})")

    def _value(self) -> _Value:
        token = self._peek()
        if self._take("("):
            with self._deeper():
                inner = self._or()
            if not self._take(")"):
                raise self._unexpected()
            return inner
        if self._take("["):
            with self._deeper():
                return self._list()
        if token.kind in ("symbol", "end") or token.text.lower() in _WORDS:
            raise self._unexpected()
        self._at += 1
        match token.kind:
            case "reference":
                return _Value(self._scope.expression(token.text[2:-1]))
            case "text":
                return self._quoted(token.text)
            case "number":
                return _constant(json.loads(token.text) if _NUMBER.fullmatch(token.text) else float(token.text))
        return self._words(token.text)

    def _list(self) -> _Value:
        items: list[_Value] = []
        while not self._take("]"):
            items.append(self._value())
            if not self._take(",") and self._peek().text != "]":
                raise self._unexpected()
        if all(item.is_constant for item in items):
            return _constant([item.constant for item in items])
        return _Value("[" + ", ".join(item.expression for item in items) + "]")

    def _quoted(self, text: str) -> _Value:
        rendered = render(re.sub(r"""\\([\\'"])""", r"\1", text[1:-1]), self._scope)
        return _constant(rendered.value) if rendered.expression is None else _Value(rendered.expression, is_quoted=True)

    def _words(self, first: str) -> _Value:
        """Return a constant, a path without braces, or a text of several words."""
        words = [first]
        while self._peek().kind == "word" and self._peek().text.lower() not in _WORDS:
            words.append(self._peek().text)
            self._at += 1
        text = " ".join(words)
        if text.lower() in _CONSTANTS:
            return _constant(_CONSTANTS[text.lower()])
        if "." in text and self._scope.knows(text.partition(".")[0]):
            parts_of(text)
            return _Value(self._scope.expression(text))
        return _constant(text)

    def _truth(self, value: _Value) -> str:
        """Return the condition that a value is truthy: not missing, empty, 0 or false, nor a text of these."""
        if value.is_constant:
            if (
                isinstance(value.constant, str)
                and _parsed_constant(value.constant) is None
                and value.constant not in ("", *_FALSE)
            ):
                raise UnreadableError(
                    f"{value.constant!r} is a text, which always holds; {_reference_hint(value.constant)}"
                )
            return literal(bool(value.constant) and str(value.constant) not in _FALSE)
        if value.is_condition:
            return value.expression
        return f"({value.expression} && !contains({literal(_FALSE)}, to_string({value.expression})))"


def _compared(left: _Value, operator: str, right: _Value) -> str:
    if left.is_constant and right.is_constant:
        words = [each.constant for each in (left, right) if isinstance(each.constant, str)]
        raise UnreadableError(
            f"both sides of {operator!r} are the same in every run; {_reference_hint(words[0] if words else '')}"
        )
    if operator in ("==", "!="):
        same = _same(left, right)
        return f"({same})" if operator == "==" else negated(same)
    first, second = (_ordered(one, other) for one, other in ((left, right), (right, left)))
    return f"({first} {operator} {second})"


def _holds(whole: _Value, part: _Value) -> str:
    """Return the condition that a list or text contains a value; a literal list contains values equal to one of its items."""
    if isinstance(whole.constant, list) and whole.constant and not part.is_constant:
        return any_of([f"({_same(part, _constant(item))})" for item in whole.constant])
    return contains(whole.expression, part.expression)


def _same(left: _Value, right: _Value) -> str:
    left, right = _as_text(left, right), _as_text(right, left)
    if right.is_constant:
        return equals(left.expression, right.constant)
    if left.is_constant:
        return equals(right.expression, left.constant)
    one, other = left.expression, right.expression
    constant = f"contains({literal(['number', 'boolean'])}, type({one})) || contains({literal(['number', 'boolean'])}, type({other}))"
    return f"({one} == {other} || (({constant}) && to_string({one}) == to_string({other})))"


def _as_text(value: _Value, other: _Value) -> _Value:
    """Return a quoted value that is compared with a text, with null as an empty text."""
    is_text = value.is_quoted and (other.is_quoted or isinstance(other.constant, str))
    return replace(value, expression=f"not_null({value.expression}, '')") if is_text else value


def _ordered(value: _Value, other: _Value) -> str:
    """Return an operand of `<` and the like: a number, unless the other operand is a text without a numeral."""
    if value.is_constant:
        constant = _parsed_constant(value.constant)
        return value.expression if constant is None or isinstance(constant, bool) else literal(constant)
    is_text = other.is_constant and isinstance(other.constant, str) and _NUMBER.fullmatch(other.constant) is None
    return value.expression if is_text else f"to_number({value.expression})"


def _parsed_constant(constant: JsonValue) -> JsonValue:
    """Return the number or boolean that a text spells; None if it spells none."""
    if not isinstance(constant, str):
        return None
    if constant.lower() in ("true", "false"):
        return constant.lower() == "true"
    return cast(JsonValue, json.loads(constant)) if _NUMBER.fullmatch(constant) else None


def _balanced(row: Sequence[str], operator: str) -> str:
    """Return conditions joined by an operator as a balanced tree, so that a long sequence is not a deep expression."""
    if len(row) == 1:
        return row[0]
    half = len(row) // 2
    return f"({_balanced(row[:half], operator)} {operator} {_balanced(row[half:], operator)})"


def _reference_hint(text: str) -> str:
    return (
        f"write ${{{text}}} for the output of a step"
        if text.isidentifier()
        else "write ${...} for the output of a step"
    )


def _condition(expression: str) -> _Value:
    return _Value(expression, is_condition=True)


def _constant(value: JsonValue) -> _Value:
    return _Value(literal(value), is_constant=True, constant=value)
