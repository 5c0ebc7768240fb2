"""Changes examples at random: texts by their characters, documents by their values."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cantata.values import JsonValue

TOKENS = (
    *(
        "",
        " ",
        "\n",
        "\t",
        "\x00",
        "\ufeff",
        "\ud800",
        "é",
        "😀",
        "\u202e",
        "#",
        "---",
        "...",
        "%",
        "&a ",
        "*a",
        "<<: *a",
    ),
    *(
        "? ",
        "- ",
        ": ",
        "|",
        ">",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "'",
        '"',
        "`",
        "\\",
        "/",
        "@",
        "$",
        "${",
        "{{",
        "}}",
        "{%",
    ),
    *(
        "==",
        "||",
        "&&",
        " OR ",
        " AND ",
        " not ",
        ".",
        ",",
        "null",
        "true",
        "0",
        "-1",
        "1e999",
        "9" * 400,
        "0x10",
        "NaN",
        ".inf",
    ),
    *("2026-01-01", "a" * 5000, "[" * 500, "{a: " * 200, "[@,@] | " * 40, "input", "output", "@input", "a/b#1|c=d,*"),
    *("!!python/object/apply:os.system [id]", "!!binary |", "__class__", "../../etc/passwd"),
)
_PLAIN: list[JsonValue] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    1e308,
    0.5,
    "",
    " ",
    "a",
    "@",
    "$",
    "\x00",
    "é😀",
    "a" * 5000,
    "a/b#1|c",
]
_WORDS: list[JsonValue] = ["input", "{input}", "${x}", "n0", "skip", "abort", "tool", "map", "branch", "wait"]
_NESTED: list[JsonValue] = [[], {}, [[]], [{}], {"": None}, {"a": {"b": []}}, ["n0", "n1"], [1] * 500]
_EXPRESSIONS: list[JsonValue] = [
    *(
        " | ".join(["[@,@]"] * 30),
        "items[*].[$.items[*].[$.items[*]]]",
        "join('', [to_string($), to_string($)])",
        "input.items",
    ),
]
VALUES: Sequence[JsonValue] = [*_PLAIN, *_WORDS, *_NESTED, *_EXPRESSIONS]


def text_of(example: str, chance: random.Random) -> str:
    """An example with some pieces taken out, put in, doubled or moved."""
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        start = chance.randrange(len(example) + 1)
        end = min(len(example), start + chance.choice([0, 1, 1, 3, 10, 60, 400]))
        piece = chance.choice(
            [chance.choice(TOKENS), chance.choice(TOKENS), example[start:end] * 2, _some(example, chance)]
        )
        example = example[:start] + piece + example[end:]
    return example


def value_of(example: JsonValue, chance: random.Random) -> JsonValue:
    """An example with some values changed, taken out, or put elsewhere."""
    for _ in range(chance.choice([1, 1, 2, 4])):
        example = _changed(example, example, chance)
    return example


def _changed(value: JsonValue, whole: JsonValue, chance: random.Random) -> JsonValue:
    """The value with one change somewhere in it."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice([chance.choice(VALUES), chance.choice(VALUES), _any_part(whole, chance)])
    if isinstance(value, dict):
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {other: each for other, each in value.items() if other != key}
        if chance.random() < 0.1:
            return {**value, chance.choice(TOKENS)[:200]: chance.choice(VALUES)}
        return {**value, key: _changed(value[key], whole, chance)}
    place = chance.randrange(len(value))
    if chance.random() < 0.1:
        return [*value[:place], *value[place + 1 :]]
    if chance.random() < 0.1:
        return [*value, *value[place:]]
    return [*value[:place], _changed(value[place], whole, chance), *value[place + 1 :]]


def _any_part(value: JsonValue, chance: random.Random) -> JsonValue:
    while isinstance(value, dict | list) and value and chance.random() < 0.8:
        value = chance.choice(list(value.values()) if isinstance(value, dict) else value)
    return value


def _some(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text) + 1)
    return text[start : start + chance.choice([1, 5, 50])]
