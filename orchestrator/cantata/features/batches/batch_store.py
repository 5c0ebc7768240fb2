"""Batches of a tenant in Redis: their records, and which rows were delivered. `lib.lua` lists the keys.

All batches of a tenant lie in one shard; their rows are runs, in all shards.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from uuid import uuid4

from pydantic import Field

from cantata.errors import ConfigError
from cantata.ledger.conversations import scoped
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import KeptItem
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.ledger.redis.pieces import ask_each
from cantata.ledger.redis.records import ask_apart, command, good, readable
from cantata.ledger.scripts import named
from cantata.values import JsonValue, Unreadable, Usage, Value, stored

BatchState = Literal["running", "paused", "budget_spent", "cancelled", "done", "unreadable"]
TargetKind = Literal["agent", "team", "chain", "workflow"]
BatchMode = Literal["live", "provider"]
Change = Literal["pause", "resume", "cancel", "spend", "retry"]

ROWS_AT_ONCE = 1000  # whose numbers one call returns
KEEP_MS = 30 * 86_400_000  # how long a batch that is over can be shown and retried; its record takes two bits a row


class BatchTarget(Value):
    """Receiver of the rows of a batch."""

    kind: TargetKind = Field(description="agent, team, chain or workflow")
    name: str = Field(description="its name in the configuration")


class BatchInfo(Value):
    """A batch as it is now. Counts and usage are those of delivered rows, and usage also of earlier rounds."""

    name: str = Field(description="its name, unique for its tenant")
    tenant: str = Field("", description="its tenant; empty for none")
    target: BatchTarget = Field(description="what its rows are sent to")
    mode: BatchMode = Field("live", description="provider: a batch of the model's provider answers the rows")
    source: str = Field("", description="the digest of its file; empty for rows that a program gives")
    columns: dict[str, str] = Field(default_factory=dict, description="column → field of the input")
    out: str = Field("", description="the file that gets the results")
    file: str = Field("", description="the file of its rows")
    ordered: bool = Field(False, description="whether results are delivered in the order of the rows")
    state: BatchState = Field(description="running, paused, budget_spent, cancelled or done; unreadable: see there")
    total: int | None = Field(None, description="number of its rows; null until all were read")
    submitted: int = Field(
        0, description="rows before this one have been submitted, as far as they were not delivered earlier"
    )
    delivered: int = Field(0, description="rows whose result was delivered")
    failed: int = Field(0, description="delivered rows that failed")
    round: int = Field(0, description="how often its failed rows were retried")
    concurrency: int = Field(100, description="rows that are open at most")
    usage: Usage = Field(default_factory=Usage, description="the consumption so far")
    priced: int = Field(0, description="delivered rows that have cost something; they tell the price of a row")
    unpriced: int = Field(0, description="delivered rows with a model call whose price is not known")
    budget_usd: float | None = Field(None, description="it stops when it has cost so much")
    labels: dict[str, str] = Field(default_factory=dict, description="labels of its runs")
    webhooks: list[str] = Field(
        default_factory=list, description="webhooks that its end is posted to: names of the configuration, or URLs"
    )
    created_at: float = Field(description="when it was begun, seconds since 1970")
    closed_at: float | None = Field(None, description="when it was done or cancelled")
    out_bytes: int = Field(0, description="size of `out` up to the last delivered row")
    small_to: int = Field(
        0,
        description="mode provider: rows before this one are in small batches, since the budget did not pay a whole one",
    )
    small_from: int | None = Field(None, description="likewise rows from this one on; null if there are none")
    uid: str = Field("", description="tells it from an earlier batch of the same name")
    unreadable: Unreadable = ""

    @property
    def is_over(self) -> bool:
        """True if it is done or cancelled."""
        return self.state in ("done", "cancelled")

    @property
    def outcome(self) -> str:
        """Its state for people: a batch that is done with failed rows is no success."""
        if self.state == "done" and self.failed:
            return "failed" if self.failed >= self.delivered else "done with failures"
        return self.state


class Delivered(NamedTuple):
    """A delivered row."""

    row: int
    has_failed: bool
    usage: Usage
    is_priced: bool = True
    """False if the price of one of its model calls is not known."""


class BatchStore:
    """The batches of one tenant."""

    def __init__(self, ledger: Ledger, tenant: str = "") -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._shard = shard_of(f"batches/{tenant}")
        self._key = shard_key(ledger.redis, self._shard)

    def open(self, name: str, identity: Mapping[str, JsonValue], settings: Mapping[str, str]) -> tuple[bool, BatchInfo]:
        """Begin a batch, or find the one with this name; return whether it is new.

        If its identity is this one, the settings replace its own.

        Args:
            name: The name, unique for the tenant.
            identity: `target`, `mode`, `source`, `columns`, `out` and `ordered`, as in BatchInfo.
            settings: `file`, `concurrency`, `budget_usd`, `labels` and `webhooks` (JSON); an empty text for none.
        """
        given = {
            "name": name, "tenant": self._prefix, "of": self._tenant, "uid": uuid4().hex[:16],
            "settings": {**settings, "keep_ms": str(KEEP_MS)},
        }  # fmt: skip
        is_new, *flat = self._call(
            "open", name, identity=json.dumps(identity, sort_keys=True, ensure_ascii=False), **given
        )
        return bool(is_new), info_of(name, named(flat))

    def find(self, name: str) -> BatchInfo | None:
        """Return a batch; None if there is none of this name."""
        return next(iter(self._read([name])), None)

    def newest(self, most: int = 100) -> Sequence[BatchInfo]:
        """Return the newest batches, newest first."""
        redis = self._ledger.redis
        return self._read(
            cast("list[str]", self._ledger.with_retries(lambda: redis.zrevrange(self._list_key, 0, most - 1)))
        )

    def _read(self, names: Sequence[str]) -> list[BatchInfo]:
        """Return those of these batches that are kept."""
        keys = [f"{self.key_of(name)}{part}" for name in names for part in ("", ":prices")]
        replies = self._ledger.with_retries(
            lambda: ask_apart(self._ledger.redis, keys, lambda pipe, key: pipe.hgetall(key))
        )
        return [
            batch_of(
                name,
                fields,
                prices,
                tenant=self._tenant,
                remedy=f"{command('batch cancel', name, self._tenant)} deletes it",
            )
            for name, fields, prices in zip(names, replies[::2], replies[1::2], strict=True)
            if fields
        ]

    def discard(self, name: str) -> None:
        """Delete the record of a batch, whatever it is like. Its open rows go on."""
        self._call("discard", name, name=name, tenant=self._prefix)

    def record(
        self,
        batch: BatchInfo,
        *,
        delivered: Sequence[Delivered] = (),
        submitted: int | None = None,
        total: int | None = None,
        out_bytes: int | None = None,
        small_to: int | None = None,
        small_from: int | None = None,
    ) -> BatchInfo:
        """Record progress of a round; return the batch after that. A row is counted once, however often it is recorded."""
        rows = [_row(each) for each in delivered]
        given = {
            "submitted": submitted,
            "total": total,
            "out_bytes": out_bytes,
            "small_to": small_to,
            "small_from": small_from,
        }
        known = {name: value for name, value in given.items() if value is not None}
        return _known(batch.name, self._call("record", batch.name, rows=rows, round=batch.round, **known))

    def change(self, name: str, what: Change, *, out_bytes: int | None = None) -> tuple[bool, BatchInfo | None]:
        """Change the state of a batch; return whether this call did, and the batch after that."""
        reply = self._call("change", name, what=what, **({} if out_bytes is None else {"out_bytes": out_bytes}))
        return (bool(reply[0]), info_of(name, named(reply[1:]))) if reply else (False, None)

    def feed(self, name: str, feeder: str, ms: int) -> tuple[str, BatchInfo]:
        """Take, renew, or with `ms` 0 give up the right to feed a batch; return the process that has it, and the batch."""
        feeder, *flat = self._call("feed", name, feeder=feeder, ms=ms) or [feeder]
        return feeder, _known(name, flat)

    def feeder(self, name: str) -> str | None:
        """Return the process that feeds a batch now; None if none does."""
        key = f"{self.key_of(name)}:feeder"
        return cast("str | None", self._ledger.with_retries(lambda: self._ledger.redis.get(key)))

    def undelivered(self, name: str, start: int, stop: int) -> Iterator[int]:
        """Yield the rows from `start` to before `stop` whose result was not delivered."""
        return self._rows(name, "delivered", 0, start, stop)

    def failed(self, name: str, start: int, stop: int) -> Iterator[int]:
        """Yield the delivered rows from `start` to before `stop` that failed."""
        return self._rows(name, "failed", 1, start, stop)

    def _rows(self, name: str, part: str, bit: int, start: int, stop: int) -> Iterator[int]:
        while start < stop:
            start, *rows = self._call("rows", name, part=part, bit=bit, start=start, stop=stop, most=ROWS_AT_ONCE)
            yield from rows

    @property
    def _list_key(self) -> str:
        """The key of the names of its batches, by time."""
        return f"{self._key}:batches:{self._prefix}"

    @property
    def _prefix(self) -> str:
        return scoped(self._tenant, "")[:-1]

    def scope(self, name: str) -> str:
        """Return the name of a batch with its tenant, as in keys and in the runs of its rows."""
        return scoped(self._tenant, name)

    def item(self, name: str) -> KeptItem:
        """Return a batch as it is counted for its tenant."""
        return KeptItem(self._shard, f"batch:{self.scope(name)}")

    def key_of(self, name: str) -> str:
        """Return the key of a batch's record; that of its prices is `:prices` below it."""
        return f"{self._key}:batch:{self.scope(name)}"

    def _call(self, script: str, batch: str, /, **given: Any) -> Sequence[Any]:
        return self._ledger.caller.call_shard(f"batches/{script}", self._shard, self.scope(batch), to_json(given))


def newest_of(ledger: Ledger, tenants: Sequence[str], most: int) -> list[BatchInfo]:
    """Return the newest batches of several tenants, newest first."""
    stores = {tenant: BatchStore(ledger, tenant) for tenant in tenants}
    keys = [store._list_key for store in stores.values()]
    replies = ledger.with_retries(
        lambda: ask_each(ledger.redis, keys, lambda pipe, key: pipe.zrevrange(key, 0, most - 1, withscores=True))
    )
    begun = heapq.nlargest(
        most, ((at, tenant, name) for tenant, pairs in zip(stores, replies, strict=True) for name, at in pairs)
    )
    names: dict[str, list[str]] = {}
    for _, tenant, name in begun:
        names.setdefault(tenant, []).append(name)
    found = {(tenant, each.name): each for tenant, of in names.items() for each in stores[tenant]._read(of)}
    return [found[tenant, name] for _, tenant, name in begun if (tenant, name) in found]


def unknown(name: str) -> ConfigError:
    """Return the error for a batch that is not kept."""
    return ConfigError(f"there is no batch {name!r}; `submit batch list` lists those kept", code="unknown_batch")


def _known(name: str, flat: Sequence[str]) -> BatchInfo:
    if not flat:
        raise unknown(name)
    return info_of(name, named(flat))


def batch_of(name: str, fields: Any, prices: Any, *, remedy: str, tenant: str = "") -> BatchInfo:
    """Return a batch from what was read of its record and its prices, which may be errors of Redis."""

    def row(why: str) -> BatchInfo:
        nobody = BatchTarget(kind="agent", name="")
        return BatchInfo(name=name, tenant=tenant, target=nobody, state="unreadable", created_at=0.0, unreadable=why)

    return readable(lambda: info_of(name, good(fields) | good(prices)), row, remedy=remedy)


def info_of(name: str, fields: Mapping[str, str]) -> BatchInfo:
    """Return a batch from the fields of its record and its prices. Raises an error if they cannot be read."""
    known = dict(fields)
    identity, _ = json.loads(known.pop("identity")), known.pop("keep_ms")
    usage = {field: known.pop(field, None) for field in ("input_tokens", "output_tokens", "cost_usd")}
    times = {field: int(known.pop(field)) / 1000 for field in ("created_at", "closed_at") if field in known}
    lists = {field: json.loads(known.pop(field)) for field in ("labels", "webhooks") if field in known}
    if (
        float(usage["cost_usd"] or 0) > 0 and "priced" not in known
    ):  # as record.lua counts them in a batch of the version before
        known["priced"] = str(max(1, int(known["delivered"]) - int(known["failed"])))
    names = {"name": name, "tenant": lists.get("labels", {}).get("tenant", "")}
    return stored(BatchInfo, {**known, **identity, **times, **lists, **names, "usage": usage}, ignores_unknown=True)


def _row(each: Delivered) -> list[JsonValue]:
    cost = each.usage.cost_usd
    cost_text = "" if cost is None else f"{cost:.12f}"
    return [
        each.row,
        int(each.has_failed),
        each.usage.input_tokens,
        each.usage.output_tokens,
        cost_text,
        int(not each.is_priced),
    ]
