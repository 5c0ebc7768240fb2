"""The environment of a program that a step starts: a documented base set, and the variables that its configuration names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cantata.errors import StepError

BASE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE")
"""The variables of the worker that every program receives: locations, and the formats of times and texts. None may hold a secret."""


def environment(names: Sequence[str]) -> dict[str, str]:
    """Return the base set and these variables of this worker. Raises StepError if one of these is not set."""
    return {**{name: os.environ[name] for name in BASE if name in os.environ}, **{name: variable(name) for name in names}}


def variable(name: str) -> str:
    """Return the value of a variable that a configuration names. Raises StepError if it is not set."""
    if name not in os.environ:
        raise StepError(f"{name} is not set; set it in the environment of the workers")
    return os.environ[name]
