"""Suggestions in messages about unknown words: "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_MAX_CHARS = 200  # of a word that is compared with the known words
_MAX_SHORT = 128  # characters of a word for which `Nearest` guesses
_MAX_GUESSES = 20  # of one Nearest: each compares with every known word, and there may be 10,000 of both


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word most similar to this one; None if none is similar enough, from 0 (any) to 1 (equal)."""
    return (
        next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)
        if len(word) <= _MAX_CHARS
        else None
    )


def hint(near: str | None) -> str:
    """Return a suggestion as the end of a message; empty if there is none."""
    return f"; did you mean {near!r}?" if near else ""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known word, else all known words."""
    return hint(nearest(word, known)) or (f"; known are {', '.join(map(repr, known))}" if known else "")


class Nearest:
    """Suggestions for unknown words of a request, of which there may be thousands."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = list(known)
        self._guesses: dict[str, str | None] = {}

    def of(self, word: str) -> str | None:
        """Return the known word most similar to this one, if one is similar enough and the limit of guesses is not reached."""
        if word not in self._guesses and len(self._guesses) < _MAX_GUESSES and len(word) <= _MAX_SHORT:
            self._guesses[word] = nearest(word, self._known)
        return self._guesses.get(word)

    def hint(self, word: str) -> str:
        """Return the suggestion as the end of a message."""
        return hint(self.of(word))
