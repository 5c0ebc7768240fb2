"""Suggestions in messages about unknown words: "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_MAX_CHARS = 200  # of a word that is compared with the known words


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word most similar to this one; None if none is similar enough, from 0 (any) to 1 (equal)."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None) if len(word) <= _MAX_CHARS else None


def hint(near: str | None) -> str:
    """Return a suggestion as the end of a message; empty if there is none."""
    return f"; did you mean {near!r}?" if near else ""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known word, else all known words."""
    return hint(nearest(word, known)) or (f"; known are {', '.join(map(repr, known))}" if known else "")
