"""The names of sessions, as users give them and in keys."""

from __future__ import annotations

from urllib.parse import quote

from cantata.ledger.redis.keys import shard_of

MAX_NAME_CHARS = 200  # characters


def fault_of(name: str) -> str | None:
    """Return what is wrong with a session's name, or None."""
    if not name.strip():
        return "the session's name is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"the session's name has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed"
    if not name.isprintable():
        return "the session's name has characters that cannot be printed, such as line ends"
    return None


def scoped(tenant: str, name: str) -> str:
    """Return the name of a session in keys: with its tenant, percent-encoded."""
    return f"{quote(tenant, safe='')}/{quote(name, safe='')}"


def shard_of_session(scope: str) -> int:
    """Return the shard of a session and of all runs of its turns."""
    return shard_of(scope)
