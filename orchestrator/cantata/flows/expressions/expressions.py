"""Parser and evaluator of expressions: JMESPath with tolerant forms.

    form                                meaning
    ----------------------------------  ------------------------------------------------------------------------------------
    `$`, `$.a.b`, `$['a']`              a path from the root, also inside filters and after pipes
    `a OR b`                            the first operand that is not null: 0, '', [] and false are kept
    `a AND b`                           b where both are true, else false
    `n > -1.5`, `not_null(n, 0)`        a number, wherever an operand may occur
    `ok == true`, `x OR null`, `true`   true, false and null, beside a comparison, OR or AND, or alone; elsewhere they are fields
    `list-files.x`, `2nd.x`             a known name, though JMESPath wants it in double quotes
    `read.output`                       all of `read`, if that is not an object with a key `output`
    `length(missing)`                   null: a function is not called with null for a typed argument

OR and AND bind loosest of all: each operand is a whole JMESPath expression, pipes included. Where only truth counts (a condition, a filter,
`!`, an operand of AND) and after a comparison, `a OR b` is true if either operand is, like `||`. All else is JMESPath as the jmespath
library implements it; so `'a' < 'b'` is true, although the specification says null.

Sources: A2E's seed page, protocol page and cookbook, whose dialects differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from jmespath import ast, exceptions, functions, lexer, parser

from cantata.flows.expressions import evaluation
from cantata.flows.expressions.evaluation import FUNCTIONS, EvaluationBudget, EvaluationLimitError
from cantata.text.suggestions import nearest
from cantata.values import JsonValue

_Node = (
    Any  # the library's trees and tokens are dicts: {"type", "value", "children"} and {"type", "value", "start", "end"}
)
_Token = Any

_MAX_TREE_DEPTH = 100  # levels of a tree; one takes up to six Python frames to evaluate, of 1,000
MAX_LENGTH = 100_000  # characters of an expression; parsing takes a hundred times their memory
_CACHED_LENGTH = 200  # characters of an expression that is cached when it is parsed: 2,048 of them take at most 50 MB
_MAX_QUOTE = 200  # characters of an expression in a message
_CONSTANTS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None}
_WORDS = {"OR": "word_or", "AND": "word_and"}
_WORD = re.compile(r"[\w-]+")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCAN = re.compile(
    r"""
      (?P<space>    [ \t\n\r]+ )
    | (?P<raw>      ' (?: [^'\\] | \\. )* ' )
    | (?P<quoted>   " (?: [^"\\] | \\. )* " )
    | (?P<literal>  ` (?: [^`\\] | \\. )* ` )
    | (?P<decimal>  -? [0-9]+ \. [0-9]+ (?! [\w-] ) )
    | (?P<number>   -? [0-9]+ (?! [\w-] ) )
    | (?P<word>     \w [\w-]* )
    | (?P<symbol>   \[\] | \[\? | \|\| | && | [<>=!]= | [][.*,:@(){}|&<>!$] )
    """,
    re.VERBOSE | re.DOTALL,
)
_SYMBOLS: Mapping[str, str] = {
    **lexer.Lexer.SIMPLE_TOKENS,
    **{
        "[]": "flatten",
        "[?": "filter",
        "[": "lbracket",
        "$": "root",
        "|": "pipe",
        "&": "expref",
        "||": "or",
        "&&": "and",
        "!": "not",
    },
    **{"==": "eq", "!=": "ne", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte"},
}
_PASS_OPERAND = ("or_expression", "and_expression", "word_or", "word_and")  # nodes whose value is one of their operands
_OPERAND_ENDS = frozenset(
    {
        "unquoted_identifier",
        "quoted_identifier",
        "literal",
        "number",
        "root",
        "current",
        "star",
        "flatten",
        "rbracket",
        "rparen",
        "rbrace",
    }
)


class ExpressionError(ValueError):
    """An expression cannot be parsed, or cannot be evaluated on this root. The message quotes it and says what to do."""


class ExpressionLimitError(ExpressionError):
    """An expression visits or produces more than the limits of a step allow."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, to be evaluated on any number of roots."""

    text: str
    """As written."""
    roots: frozenset[str]
    """The names that it reads from the root. `@`, `$` and `*` alone name nothing: they return whatever exists."""
    inputs: frozenset[str]
    """The keys of `input` that it reads, unless `input` is a known name."""
    _tree: _Node = field(repr=False, compare=False)

    def evaluate(self, root: Mapping[str, JsonValue], budget: EvaluationBudget | None = None) -> JsonValue:
        """Return the value; null for whatever is missing. The evaluation is charged to `budget`, or to one with the default limits.

        Raises ExpressionError if a function gets an argument of a wrong type, and ExpressionLimitError past the limits.
        """
        return self._visit(self._tree, root, budget)

    def is_true(self, root: Mapping[str, JsonValue], budget: EvaluationBudget | None = None) -> bool:
        """Return whether it is true by JMESPath's rules: null, false, "", [] and {} are false, all else is true, 0 and "false" too.

        Raises ExpressionError as `evaluate` does.
        """
        return self._visit(_test(self._tree), root, budget) is True

    def _visit(self, tree: _Node, root: Mapping[str, JsonValue], budget: EvaluationBudget | None) -> JsonValue:
        try:
            return evaluation.evaluate(tree, dict(root), budget or EvaluationBudget())
        except EvaluationLimitError as error:
            raise ExpressionLimitError(
                f"expression {_quoted(self.text)}: {error}; split it over several steps, or give it less data"
            ) from error
        except exceptions.JMESPathTypeError as error:
            raise ExpressionError(f"expression {_quoted(self.text)}: {_type_fault(error)}") from error
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise ExpressionError(
                f"expression {_quoted(self.text)} cannot be evaluated on this data: {error}"
            ) from error


def parse(text: str, names: Collection[str] = ()) -> Expression:
    """Parse an expression. `names` are the known names of the root, such as node ids.

    A known name needs no quotes for hyphens or a leading digit. A name of digits only needs them, except before `.` or `[`, after `.`, or
    alone.

    Raises ExpressionError for every fault that can be found without data: syntax, unknown functions, wrong numbers of arguments.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"expression {_quoted(text)} has {len(text):,} characters; {MAX_LENGTH:,} are allowed: split it over several steps"
        )
    known = names if isinstance(names, frozenset) else frozenset(names)
    if len(text) > _CACHED_LENGTH or "\\" in text:
        return _parse(text, known)
    try:
        return _parse_usual(text, known.intersection(_words(text)))
    except ExpressionError:
        return _parse(text, known)  # its messages consider all names


def _parse(text: str, names: frozenset[str]) -> Expression:
    if not text.strip():
        raise ExpressionError(
            f"expression {text!r} is empty; write a path such as 'read.data', or a text in single quotes"
        )
    try:
        tree = _ExpressionParser(text, _scan(text, names)).tree()
        survey = _Survey(text, names)
        survey.read(tree)
    except exceptions.ParseError as error:
        raise _fault(text, error.lex_position, _syntax_fault(error)) from error
    except RecursionError as error:
        raise _fault(text, 0, "it is nested too deeply; split it over several steps") from error
    return Expression(text, frozenset(survey.roots), frozenset(survey.inputs), tree)


def _words(text: str) -> Iterator[str]:
    """Yield all that may be a name in a text without backslashes, and more, so that the cache does not depend on all names of a chain."""
    yield from _WORD.findall(text)
    for quote in "\"'`":
        yield from map(str.lstrip, text.split(quote))
        yield from text.split(quote)


_parse_usual = lru_cache(maxsize=2048)(_parse)  # a run's expressions are parsed again for each of its steps


# Error messages

_QUOTES = "a text goes in 'single quotes', a field of odd spelling in \"double quotes\""


def _fault(text: str, position: int, what: str) -> ExpressionError:
    return ExpressionError(f"expression {_quoted(text)}, column {position + 1}: {what}")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}...")


def _syntax_fault(error: exceptions.ParseError) -> str:
    if error.token_type in (None, "EOF"):
        return "it ends too early; complete it"
    if str(error.token_value) in ("or", "and"):
        return f"unexpected {error.token_value!r}; write {error.token_value.upper()}"
    return f"unexpected {error.token_value!r}; {_QUOTES}"


def _type_fault(error: exceptions.JMESPathTypeError) -> str:
    found = functions.TYPES_MAP.get(error.actual_type, error.actual_type)
    return f"{error.function_name}() was given {found} where it takes {' or '.join(error.expected_types)}; correct the path or the data"


def _nearest(word: str, known: Collection[str]) -> str:
    near = nearest(word, known)
    return f" (did you mean {near!r}?)" if near else ""


# Text to tokens


def _scan(text: str, names: frozenset[str]) -> list[_Token]:
    """Return the tokens of `text` with their positions: the library's types, and `root`, `word_or` and `word_and`."""
    tokens: list[_Token] = []
    for found in _lexemes(text):
        before = tokens[-1]["type"] if tokens else ""
        try:
            kind, value = _read(found, before, names)
        except (ValueError, RecursionError) as error:
            raise _fault(text, found.start(), str(error)) from error
        tokens.append({"type": kind, "value": value, "start": found.start(), "end": found.end()})
    return [*tokens, {"type": "eof", "value": "", "start": len(text), "end": len(text)}]


def _lexemes(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        found = _SCAN.match(text, position)
        if found is None:
            raise _fault(text, position, _scan_fault(text[position]))
        if found.lastgroup != "space":
            yield found
        position = found.end()


def _scan_fault(character: str) -> str:
    if character in "'\"`":
        return f"the {character} that opens here is never closed"
    if character == "=":
        return "unexpected '='; compare with =="
    return f"unexpected {character!r}; {_QUOTES}"


def _read(found: re.Match[str], before: str, names: frozenset[str]) -> tuple[str, JsonValue]:
    """Return a token's type and value. Raises ValueError with the fault."""
    lexeme = found[0]
    match found.lastgroup:
        case "raw":
            return "literal", lexeme[1:-1].replace("\\'", "'")
        case "quoted":
            return "quoted_identifier", json.loads(lexeme)
        case "literal":
            return "literal", _json_literal(lexeme[1:-1].replace("\\`", "`"))
        case "decimal":
            return "literal", float(lexeme)
        case "number" if not _is_name(found, before, names):
            return "number", int(lexeme)
        case "symbol":
            return _SYMBOLS[lexeme], lexeme
        case _:
            return _word_type(lexeme, before, names), lexeme


def _json_literal(text: str) -> JsonValue:
    for json_text in (
        text,
        f'"{text.lstrip()}"',
    ):  # the second is JMESPath's old rule (JEP-12): text that is not JSON is a string
        with suppress(ValueError):
            value: JsonValue = json.loads(json_text)
            return value
    raise ValueError("the text in backticks is not JSON; a text goes in 'single quotes'")


def _is_name(number: re.Match[str], before: str, names: frozenset[str]) -> bool:
    """Return whether a number is the id of a node: it is one where no number can occur."""
    if number[0] not in names:
        return False
    after = number.string[number.end() :].lstrip()[:1]
    return before == "dot" or after in ("[", ".") or number[0] == number.string.strip()


def _word_type(word: str, before: str, names: frozenset[str]) -> str:
    if word in _WORDS and before in _OPERAND_ENDS:
        return _WORDS[word]
    if word in names:
        return "quoted_identifier" if word in _CONSTANTS else "unquoted_identifier"
    if _IDENTIFIER.fullmatch(word):
        return "unquoted_identifier"
    raise ValueError(f"{word!r} is not a known name{_nearest(word, names)}; {_QUOTES}")


# Tokens to a tree


def _test(node: _Node) -> _Node:
    return {"type": "test", "children": [node]}


def _settled(operand: _Node) -> _Node:
    """Return an operand; the bare words true, false and null become constants."""
    return ast.literal(_CONSTANTS[operand["value"]]) if operand.get("bare") else operand


def _is_condition(node: _Node) -> bool:
    """Return whether the value of a node can only be true or false."""
    if node["type"] in ("or_expression", "and_expression", "word_and"):
        return all(_is_condition(child) for child in node["children"])
    return node["type"] in ("comparator", "not_expression")


def _call_fault(call: _Node) -> str | None:
    """Return what is wrong with a function call, whatever its data; None if nothing is."""
    name, given = call["value"], call["children"]
    if name not in FUNCTIONS:
        return f"there is no function {name}(){_nearest(name, FUNCTIONS)}"
    taken = FUNCTIONS[name]["signature"]
    many = taken[-1].get("variadic", False)
    if len(given) < len(taken) or (len(given) > len(taken) and not many):
        return f"{name}() takes {'at least ' if many else ''}{len(taken)} argument{'s' if len(taken) > 1 else ''}, not {len(given)}"
    for scope, (argument, parameter) in enumerate(zip_longest(given, taken, fillvalue=taken[-1]), 1):
        if ("expref" in parameter["types"]) != (argument["type"] == "expref"):
            return f"argument {scope} of {name}() must be {'an &expression' if 'expref' in parameter['types'] else 'a value, without &'}"
    return None


class _ExpressionParser(parser.Parser):  # type: ignore[misc]  # jmespath ships no types
    """The library's parser with the tolerant forms as further tokens of its grammar."""

    BINDING_POWER: Mapping[str, float] = {
        **parser.Parser.BINDING_POWER,
        "root": 0,
        "word_or": 0.25,
        "word_and": 0.5,
    }  # a pipe has 1

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        super().__init__()
        self._text = text
        self._tokens = tokens

    def tree(self) -> _Node:
        tree = _settled(self._expression())
        if self._current_token() != "eof":
            self._raise_parse_error_for_token(self._lookahead_token(0), "unexpected")
        return tree

    def _token_nud_root(self, _token: _Token) -> _Node:
        return {"type": "root", "children": []}

    def _token_nud_number(self, token: _Token) -> _Node:
        return ast.literal(token["value"])

    def _token_nud_unquoted_identifier(self, token: _Token) -> _Node:
        node = ast.field(token["value"])
        return {**node, "bare": True} if token["value"] in _CONSTANTS else node

    def _token_nud_not(self, token: _Token) -> _Node:
        node = super()._token_nud_not(token)
        return {**node, "children": [_test(child) for child in node["children"]]}

    def _token_nud_expref(self, token: _Token) -> _Node:
        return {**super()._token_nud_expref(token), "start": token["start"]}

    def _token_led_word_or(self, left: _Node) -> _Node:
        right = self._expression(self.BINDING_POWER["word_or"])
        return {
            "type": "or_expression" if _is_condition(left) else "word_or",
            "children": [_settled(left), _settled(right)],
        }

    def _token_led_word_and(self, left: _Node) -> _Node:
        right = self._expression(self.BINDING_POWER["word_and"])
        return {"type": "word_and", "children": [_settled(left), _settled(right)]}

    def _parse_comparator(self, left: _Node, comparator: str) -> _Node:
        node = super()._parse_comparator(left, comparator)
        return {**node, "children": [_settled(operand) for operand in node["children"]]}

    def _token_led_filter(self, left: _Node) -> _Node:
        node = super()._token_led_filter(left)
        base, projected, condition = node["children"]
        return {**node, "children": [base, projected, _test(condition)]}

    def _token_led_lbracket(self, left: _Node) -> _Node:
        key = self._lookahead_token(0)
        if (
            key["type"] in ("literal", "quoted_identifier")
            and isinstance(key["value"], str)
            and self._lookahead(1) == "rbracket"
        ):
            self._advance()
            self._advance()
            path = left["children"] if left["type"] == "subexpression" else [left]
            return {"type": "subexpression", "children": [*path, ast.field(key["value"])]}
        return super()._token_led_lbracket(left)

    def _token_led_lparen(self, left: _Node) -> _Node:
        start = self._lookahead_token(-2)["start"]
        node = super()._token_led_lparen(left)
        fault = _call_fault(node)
        if fault:
            raise _fault(self._text, start, fault)
        return node

    def _parse_slice_expression(self) -> _Node:
        node = super()._parse_slice_expression()
        if node["children"][2] == 0:
            raise _fault(self._text, self._lookahead_token(-1)["start"], "a slice cannot go by steps of 0")
        return node


class _Scope(IntEnum):
    """The value that a part of an expression is applied to."""

    ELSEWHERE = 0
    INPUT = 1
    """The value of `input`."""
    NAME = 2
    """The value of a known name."""
    ROOT = 3


class _Survey:
    """One walk over a tree: collects the names read from the root, and marks `X.output` of known names."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        self.roots: set[str] = set()
        self.inputs: set[str] = set()
        self._text = text
        self._names = names

    def read(self, node: _Node, scope: _Scope = _Scope.ROOT, depth: int = 0) -> _Scope:
        """Return the kind of the node's value, if it is applied to `scope`. Raises RecursionError for a tree too deep to be evaluated."""
        if depth > _MAX_TREE_DEPTH:
            raise RecursionError
        match node["type"]:
            case "field":
                return self._read_field(node, scope)
            case "root":
                return _Scope.ROOT
            case "current" | "identity":
                return scope
            case "literal" | "index" | "slice":
                return _Scope.ELSEWHERE
            case "subexpression" | "pipe" | "index_expression":
                for part in node["children"]:
                    scope = self.read(part, scope, depth + 1)
                return scope
            case "projection" | "value_projection" | "filter_projection":
                self._read_all(node["children"][:1], scope, depth)
                return self._read_all(node["children"][1:], _Scope.ELSEWHERE, depth)
            case "function_expression":
                scopes = [self._read_argument(child, scope, depth) for child in node["children"]]
                return max(scopes) if node["value"] == "not_null" else _Scope.ELSEWHERE
            case "expref":
                raise _fault(
                    self._text, node["start"], "an &expression can only be an argument of a function such as sort_by()"
                )
            case kind:
                operands = self._read_all(node["children"], scope, depth)
                return operands if kind in _PASS_OPERAND else _Scope.ELSEWHERE

    def _read_field(self, node: _Node, scope: _Scope) -> _Scope:
        if scope is _Scope.ROOT:
            self.roots.add(node["value"])
            if node["value"] in self._names:
                return _Scope.NAME
            return _Scope.INPUT if node["value"] == "input" else _Scope.ELSEWHERE
        if scope is _Scope.INPUT:
            self.inputs.add(node["value"])
        if scope is _Scope.NAME and node["value"] == "output":
            node["type"] = "whole_output"
        return _Scope.ELSEWHERE

    def _read_argument(self, argument: _Node, scope: _Scope, depth: int) -> _Scope:
        if argument["type"] == "expref":  # it is applied to the elements of another argument
            return self._read_all(argument["children"], _Scope.ELSEWHERE, depth)
        return self.read(argument, scope, depth + 1)

    def _read_all(self, nodes: list[_Node], scope: _Scope, depth: int) -> _Scope:
        return max([self.read(node, scope, depth + 1) for node in nodes])
