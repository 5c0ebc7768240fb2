"""How many examples Hypothesis tries: a fifth of all, so that the tests of every change take seconds; with THOROUGH_TESTS=1 all."""

from __future__ import annotations

import os

from hypothesis import settings

FEWER = 1 if os.environ.get("THOROUGH_TESTS") == "1" else 5


def examples(count: int) -> settings:
    """Settings of a test that needs more examples than the usual 100."""
    return settings(max_examples=count // FEWER)
