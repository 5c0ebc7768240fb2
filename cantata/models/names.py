"""Names of queues and workers, which also stand in Redis keys, leases, addresses and metric labels."""

from __future__ import annotations

import re

MAX_NAME = 100  # characters
NAME = r"[A-Za-z0-9._-]{1,100}"


def checked_name(what: str, name: str) -> str:
    """Return the name of a queue or worker. Raises ValueError for one with other characters, or too many."""
    if not re.fullmatch(NAME, name):
        found = repr(name) if len(name) <= MAX_NAME else f"{len(name)} characters"
        raise ValueError(f"a {what}'s name has letters from A to Z, digits and . _ -, at most {MAX_NAME} of them; found {found}")
    return name
