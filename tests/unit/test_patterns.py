"""Regular expressions that others write: which are refused, and the time that they share."""

from __future__ import annotations

import time

import pytest

from cantata.text.patterns import MAX_PATTERN_PARTS, SearchTime, compiled, parts_of

CATASTROPHE = "^(([a-z])+.)+[A-Z]([a-z])+$"
TEXT = "a" * 5000


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){3}c", 7),
        ("((a?){10}){20}", 200),
        ("((a{2}b){3}c){4}", 40),
        ("[a{9}]{2}", 2),
        (r"\{5}\(\[", 5),
        ("a{0,900}b{2,}", 3),
        ("a{99999999999999999999}", MAX_PATTERN_PARTS + 1),
        ("(?#((((a{9})x", 1),
        ("[]({9}]", 1),
        ("[^]({9}]", 1),
    ],
)
def test_repetitions_are_counted_as_they_are_compiled(pattern: str, parts: int) -> None:
    assert parts_of(pattern) == parts


@pytest.mark.parametrize(
    "pattern",
    [
        "((a?){1000}){1000}",
        "((a{9}){9}){9}" * 10,
        "((a?){1000}[[:alpha:])][[:alpha:](]){1000}",
        "((a?){1000}#)(\n){1000}(?x)",
        "(?ix:a)",
        "(?V1)[a--b]",
        "a)",
        "[a",
        "a\\",
        "(",
        "x" * 2001,
        "(" * 900 + ")" * 900,
        "(?<n>a)(?<n",
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_before_it_takes_time_or_memory(pattern: str) -> None:
    begun = time.thread_time()

    with pytest.raises(ValueError, match=r"."):
        compiled(pattern)

    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize(
    "pattern", ["^[0-9]{4}-[0-9]{2}$", r"\p{L}+", "(?i)abc", "^(?!x)(?<y>a|b){1,64}$", "[[]a]", r"[\]:]", "^.{1,4000}$"]
)
def test_usual_patterns_are_compiled(pattern: str) -> None:
    assert compiled(pattern).pattern == pattern


def test_searches_share_one_time_out() -> None:
    searches, pattern = SearchTime(0.2), compiled(CATASTROPHE)
    begun = time.thread_time()

    for _ in range(50):
        with pytest.raises(TimeoutError, match=r"takes too long: the search has 0\.2 s"):
            searches.is_found(pattern, TEXT)

    assert time.thread_time() - begun < 0.5
    with pytest.raises(TimeoutError):
        searches.is_found(compiled("a"), "a")


def test_what_is_found_quickly_uses_up_nearly_nothing() -> None:
    searches, pattern = SearchTime(0.2), compiled("^a+$")

    assert sum(searches.is_found(pattern, "aaa") for _ in range(1000)) == 1000
    assert not searches.is_found(pattern, "b")
