"""The state of chain builders: their chains, and the progress of each.

S:builder:<tenant>/<name>  hash   plan → the chains (JSON text); at:<chain> → its progress (JSON text)

S is the prefix of the shard that the name belongs to. A builder expires when it was not changed for 30 days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast
from urllib.parse import quote

from cantata.flows.definitions import Quota
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import KeptItem
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.values import JsonValue

KEEP_S = 30 * 86_400.0
MAX_NAME_CHARS = 200  # characters

Fields = Mapping[str, str | None]
"""Field → text; None where there is none."""


def fault_of(name: object) -> str | None:
    """Return what is wrong with a builder's name, or None."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return f"a builder's name is a printable text, not {name!r}"
    return (
        f"the builder's name has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed"
        if len(name) > MAX_NAME_CHARS
        else None
    )


class Builder:
    """The state of one builder. Safe to share between threads and processes."""

    def __init__(self, ledger: Ledger, name: str, tenant: str = "", quota: Quota = Quota()) -> None:  # noqa: B008  # a frozen value
        self._ledger = ledger
        self._tenant = tenant
        self._quota = quota
        self._scope = f"{quote(tenant, safe='')}/{quote(name, safe='')}"
        self._item = KeptItem(shard_of(self._scope), f"builder:{self._scope}")
        self._key = f"{shard_key(ledger.redis, self._item.shard)}:{self._item.name}"

    def read(self, fields: Sequence[str]) -> Fields:
        """Return some fields."""
        found = self._ledger.with_retries(lambda: self._ledger.redis.hmget(self._key, list(fields)))
        return dict(zip(fields, cast("list[str | None]", found), strict=True))

    def update(
        self, fields: Sequence[str], change: Callable[[Fields], Mapping[str, str]], *, of_run: bool = False
    ) -> None:
        """Replace some fields by the result of `change`, which is called again if another writer was faster.

        Raises ConfigError if the quota does not allow it; never for the outcome of a run, `of_run`.
        """
        while True:
            found = self.read(fields) if fields else {}
            changed = change(found)
            if not changed:
                return
            given: dict[str, JsonValue] = {
                "scope": self._scope, "tenant": self._tenant, "keep_ms": int(KEEP_S * 1000),
                "expected": [[field, text or ""] for field, text in found.items()], "changed": dict(changed),
            }  # fmt: skip
            quota = Quota() if of_run else self._quota
            with self._ledger.quotas.store(
                self._tenant, quota, sum(map(len, changed.values())), name=self._item, of_run=of_run
            ):
                if self._ledger.caller.call_shard("sessions/change_builder", self._item.shard, to_json(given)):
                    return
