"""How much tests try: Hypothesis a fifth of its examples, so that the tests of every change take seconds; with THOROUGH_TESTS=1 all."""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

FEWER = 1 if os.environ.get("THOROUGH_TESTS") == "1" else 5


def thorough(value: T, *, plain: T) -> T:
    """Return how much a test tries if it is thorough, else the plain value."""
    return value if FEWER == 1 else plain


def examples(count: int) -> settings:
    """Settings of a test that needs more examples than the usual 100."""
    return settings(max_examples=count // FEWER)
