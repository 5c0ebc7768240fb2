"""Items of the sweep that failed: `parking.lua` parks them, and an operator has them tried again or drops them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, cast

import structlog
from pydantic import Field
from redis import Redis

from cantata import __version__
from cantata.errors import ConfigError
from cantata.ledger.encoding import to_json
from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.redis.pieces import ask_shards, scan
from cantata.ledger.redis.records import readable
from cantata.ledger.scripts import ScriptCaller
from cantata.values import JsonValue, Unreadable, Value

log = structlog.get_logger(__name__)

PARKED_KEY = "parked"  # hash of a shard, as run.lua describes it
MAX_TRIES = 3  # as parking.lua has it
MAX_LISTED = 1000
MAX_ERROR = 300  # characters of an error that are kept

Action = Literal["retry", "drop"]

DUTIES = {
    "unfinished": "what a call left of a run, which takes no other call meanwhile: cancel the run",
    "leases": "a lost lease: its step is not recovered",
    "timers": "a timer of a step or run: it does not fire",
    "permits": "a step that waits for a rate limit: it is not woken",
    "lost": "a step that nobody began: it is not sent again",
    "sends": "a step that is due: it is not sent",
    "tasks": "a task of another application: nobody looks for its result",
    "clearing": "an ended run: its open steps are not cleared, and it does not expire",
    "expiry": "an expired run: it is still counted",
    "item_ends": "something that a tenant kept: it is still counted for its quotas",
    "schedules": "a schedule: it starts no runs",
}
"""The duties whose items can be parked, and what does not happen then."""


class ParkedItem(Value):
    """An item of the sweep that failed three times, and is left alone."""

    id: str = Field(description="for `submit parked retry` and `drop`")
    duty: str = Field(description="the duty of the sweep that failed")
    item: str = Field(description="the item in the list of its duty, such as `run|step` or a schedule")
    effect: str = Field(description="what it is, and what does not happen meanwhile")
    error: str = Field(description="why it failed the last time")
    since: float = Field(description="when it first failed, seconds since 1970")
    at: float = Field(description="when it last failed")
    tries: int = Field(description="how often it failed")
    unreadable: Unreadable = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """An item in a shard."""

    shard: int
    field: str

    @property
    def id(self) -> str:
        """The shard, and a digest of the item: short enough to type."""
        return f"{self.shard}-{sha256(self.field.encode()).hexdigest()[:8]}"


class ParkedStore:
    """The parked items of a ledger."""

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller
        self._redis: Redis = caller.redis

    def record_failure(self, shard: int, duty: str, item: str, error: str) -> int:
        """Record that an item failed, and have it tried again later; return how often it has. The third time it is parked."""
        return cast(
            int, self._caller.call_shard("ledger/item_failed", shard, duty, item, error[:MAX_ERROR], __version__)
        )

    def find(self, *, most: int = MAX_LISTED) -> list[ParkedItem]:
        """Return the parked items, those that failed first at the beginning; at most so many."""
        found: list[ParkedItem] = []
        for place, text in self._entries():
            if len(found) >= most:
                break
            if item := _item(place, text):
                found.append(item)
        return sorted(found, key=lambda item: item.since)

    def act(self, item_id: str, action: Action, by: str, author: Mapping[str, JsonValue] | None = None) -> ParkedItem:
        """Have a parked item tried again, or drop it; an event of its run, and a log line, record it, with the fields of `author`.

        Raises ConfigError for another id.
        """
        for place, text in self._entries(int(shard) if (shard := item_id.partition("-")[0]).isdigit() else -1):
            if place.id == item_id and (item := _item(place, text)):
                detail = to_json({"by": by, **(author or {})})
                self._caller.call_shard("ledger/unpark", place.shard, place.field, action, by, detail)
                log.info("parked_item_changed", action=action, by=by, duty=item.duty, item=item.item, error=item.error)
                return item
        raise ConfigError(f"no parked item has the id {item_id!r}; `submit parked list` lists them", source="parked")

    def _entries(self, only: int | None = None) -> Iterator[tuple[_Place, str]]:
        """Yield the items that failed, of all shards or of one."""
        counts = self._caller.with_retries(
            lambda: ask_shards(self._redis, lambda pipe, key: pipe.hlen(f"{key}:{PARKED_KEY}"))
        )
        for shard in range(SHARDS):
            if counts[shard] and only in (None, shard):
                key = f"{shard_key(self._redis, shard)}:{PARKED_KEY}"
                for name, text in scan(self._redis, self._caller.with_retries, key, limit=MAX_LISTED).items():
                    yield _Place(shard, name), text


def _item(place: _Place, text: str) -> ParkedItem | None:
    """Return a parked item; None for one that is still tried."""
    duty, _, name = place.field.partition("|")
    effect = DUTIES.get(duty, "of a newer version")

    def read() -> ParkedItem | None:
        record = json.loads(text)
        if not record["parked"]:
            return None
        return ParkedItem(
            id=place.id,
            duty=duty,
            item=name,
            effect=effect,
            error=record["error"],
            since=record["since"] / 1000,
            at=record["at"] / 1000,
            tries=record["tries"],
        )

    def row(why: str) -> ParkedItem:
        return ParkedItem(
            id=place.id, duty=duty, item=name, effect=effect, error=why, since=0.0, at=0.0, tries=0, unreadable=why
        )

    return readable(read, row, remedy=f"`submit parked drop {place.id}` removes it")
