"""Redaction of secrets: values whose names mark them as secret, and texts that look like a key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cantata.values import JsonValue

SECRET_NAMES = re.compile(r"(key|token|secret|password|credentials?|authorization)(_?\d+)?$", re.IGNORECASE)
SECRET_SIZE = 8  # shorter values are numbers and words, which occur in any text
MAX_SCANNED_CHARS = 50_000  # of a text whose beginning is shown: the scan blocks the process
SECRET_TEXTS = (
    (re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|pplx|ghp)[-_][\w*.-]{6,}|\bAIza[\w-]{20,}"), "***"),
    (re.compile(r"\b(bearer|basic)\s+(?!\*)[^\s\"',}]+", re.IGNORECASE), r"\1 ***"),
    (
        re.compile(
            r"\b((?:x-)?api[-_]key|authorization|password)(['\"]?\s*[:=]\s*['\"]?)(?!bearer|basic)[^\s\"',}]+",
            re.IGNORECASE,
        ),
        r"\1\2***",
    ),
    (re.compile(r"(?<=://)[^/\s@]+@"), "***@"),
)


def secrets_in(values: Mapping[str, JsonValue] | Mapping[str, str]) -> list[str]:
    """Return the values whose names mark them as secret, longest first."""
    return sorted(_secrets(values), key=len, reverse=True)


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return a text without these secrets, and without texts that look like one."""
    for secret in secrets:
        text = text.replace(secret, "***")
    for pattern, replacement in SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


def redact_beginning(text: str, secrets: Sequence[str], *, max_chars: int) -> str:
    """Return at most `max_chars` of a redacted text, with its length if it is longer; valid UTF-8, though a file name may be none."""
    shown = redact(text[:MAX_SCANNED_CHARS].encode("utf-8", "replace").decode(), secrets)
    return (
        shown
        if len(text) <= MAX_SCANNED_CHARS and len(shown) <= max_chars
        else f"{shown[:max_chars]}… ({len(text)} characters)"
    )


def _secrets(values: Mapping[str, JsonValue] | Mapping[str, str]) -> Iterator[str]:
    for name in list(values):
        value = values.get(name)  # another thread may remove a variable of the environment meanwhile
        if isinstance(value, dict):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= SECRET_SIZE and SECRET_NAMES.search(name):
            yield value
