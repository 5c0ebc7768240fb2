"""The state of chain builders: their chains, and the progress of each.

S:builder:<tenant>/<name>  hash   plan → the chains (JSON text); at:<chain> → its progress (JSON text)

S is the prefix of the shard that the name belongs to. A builder expires when it was not changed for 30 days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast
from urllib.parse import quote

from redis.exceptions import WatchError

from cantata.state.ledger.ledger import Ledger
from cantata.state.redis.keys import shard_key, shard_of

KEEP_S = 30 * 86_400.0
MAX_NAME_CHARS = 200  # characters

Fields = Mapping[str, str | None]
"""Field → text; None where there is none."""


def fault_of(name: object) -> str | None:
    """Return what is wrong with a builder's name, or None."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return f"a builder's name is a printable text, not {name!r}"
    return f"the builder's name has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed" if len(name) > MAX_NAME_CHARS else None


class Builder:
    """The state of one builder. Safe to share between threads and processes."""

    def __init__(self, ledger: Ledger, name: str, tenant: str = "") -> None:
        self._ledger = ledger
        scoped = f"{quote(tenant, safe='')}/{quote(name, safe='')}"
        self._key = f"{shard_key(ledger.redis, shard_of(scoped))}:builder:{scoped}"

    def read(self, fields: Sequence[str]) -> Fields:
        """Return some fields."""
        found = self._ledger.with_retries(lambda: self._ledger.redis.hmget(self._key, list(fields)))
        return dict(zip(fields, cast("list[str | None]", found), strict=True))

    def update(self, fields: Sequence[str], change: Callable[[Fields], Mapping[str, str]]) -> None:
        """Replace some fields by the result of `change`, which is called again if another writer was faster."""
        while not self._ledger.with_retries(lambda: self._try(fields, change)):
            pass

    def _try(self, fields: Sequence[str], change: Callable[[Fields], Mapping[str, str]]) -> bool:
        with self._ledger.redis.pipeline(transaction=True) as pipe:
            pipe.watch(self._key)  # type: ignore[no-untyped-call]  # untyped in redis-py
            found = cast("list[str | None]", pipe.hmget(self._key, list(fields))) if fields else []
            changed = change(dict(zip(fields, found, strict=True)))
            pipe.multi()
            if changed:
                pipe.hset(self._key, items=[part for pair in changed.items() for part in pair])
                pipe.pexpire(self._key, int(KEEP_S * 1000))
            try:
                pipe.execute()
            except WatchError:
                return False
        return True
