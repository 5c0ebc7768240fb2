"""Suggestions for unknown words."""

from __future__ import annotations

import pytest

from cantata.text.suggestions import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("serach", ["find", "search"], "; did you mean 'search'?"),
        ("x", ["find", "search"], "; known are 'find', 'search'"),
        ("x", [], ""),
        ("search" * 50, ["search" * 50 + "s"], f"; known are {'search' * 50 + 's'!r}"),
    ],
)
def test_the_nearest_known_word_is_suggested_else_all_are_listed(word: str, known: list[str], text: str) -> None:
    assert did_you_mean(word, known) == text


def test_a_cutoff_says_how_similar_a_word_must_be() -> None:
    assert (nearest("chian", ["chain"]), nearest("chian", ["chain"], cutoff=0.9)) == ("chain", None)
