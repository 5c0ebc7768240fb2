"""Validation by JSON schemas with a time-out for patterns: with some patterns, a text makes `re` search for years."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

PATTERN_TIMEOUT_S = 1.0
"""Seconds that one pattern may take."""


def errors_in(value: object, schema: object) -> Iterator[ValidationError]:
    """Yield the errors of a value by a valid schema."""
    found: Iterator[ValidationError] = _Validator(schema).iter_errors(value)
    return found


def _is_in(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text. Raises ValidationError after the time-out."""
    try:
        return _compiled(pattern).search(text, timeout=PATTERN_TIMEOUT_S, concurrent=True) is not None
    except TimeoutError:
        raise ValidationError(f"the pattern {pattern!r} searched this text for more than {PATTERN_TIMEOUT_S:g} s") from None


def _pattern(_validator: object, pattern: str, instance: object, _schema: object) -> Iterator[ValidationError]:
    try:
        if isinstance(instance, str) and not _is_in(pattern, instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")
    except ValidationError as timeout:
        yield timeout


def _pattern_properties(validator: Any, patterns: dict[str, object], instance: object, _schema: object) -> Iterator[ValidationError]:
    entries = instance.items() if isinstance(instance, dict) else ()
    for (pattern, subschema), (key, value) in product(patterns.items(), entries):
        try:
            if _is_in(pattern, key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)
        except ValidationError as timeout:
            yield timeout


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


_Validator: Any = extend(Draft202012Validator, {"pattern": _pattern, "patternProperties": _pattern_properties})
