"""Constrained texts and mappings: names of queues and workers, names of environment variables, parameters of model calls."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, JsonValue

MAX_NAME = 100  # characters
NAME = r"[A-Za-z0-9._-]{1,100}"
SECRETS = ("api_key", "token", "secret", "password", "authorization")


def checked_name(what: str, name: str) -> str:
    """Return the name of a queue or worker. Raises ValueError if it is too long or has other characters than letters, digits and . _ -.

    These names also occur in Redis keys, leases, addresses and metric labels.
    """
    if not re.fullmatch(NAME, name):
        found = repr(name) if len(name) <= MAX_NAME else f"{len(name)} characters"
        raise ValueError(f"a {what}'s name has letters from A to Z, digits and . _ -, at most {MAX_NAME} of them; found {found}")
    return name


def _no_secrets(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    named = next((key for key in params if any(word in key.lower() for word in SECRETS) and not key.lower().endswith("tokens")), None)
    if named:
        raise ValueError(f"{named!r} does not belong in a configuration, which is stored with every run; set it in the environment")
    return params


Params = Annotated[dict[str, JsonValue], AfterValidator(_no_secrets)]
"""Parameters of model calls. They hold no secrets, since they are stored with every run."""
