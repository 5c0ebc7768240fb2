"""The audit log in Redis: bounded streams, two for each tenant, so that no tenant's entries and no refusals push out others.

`append.lua` writes them. All lie in one shard S, since people act rarely:
  S:audit:done:<tenant>, S:audit:refused:<tenant>   streams of entries (JSON)         expire after CANTATA_AUDIT_DAYS without another
  S:audit:streams                                   zset  stream -> its last entry    likewise
  S:audit:last                                      the last id of all streams        likewise
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Literal, cast

from pydantic import Field

from cantata.errors import ConfigError
from cantata.features.audit.actors import Actor, one_line
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import shard_key
from cantata.ledger.redis.records import readable
from cantata.settings import settings
from cantata.values import JsonValue, Unreadable, Value, stored

SHARD = 0
MAX_REFUSALS = 1000  # of a tenant: a token that may do nothing can cause as many as it likes
MAX_TEXT_CHARS = 300  # of a text in an entry
MAX_PAGE = 1000
SCANNED_PER_PAGE = 5000  # entries that one page looks at
PIECE = 100  # entries read at once
STREAMS_AT_ONCE = 20  # streams read in one round trip
DAY_S = 86_400

Outcome = Literal["done", "refused", "begun"]

_PLACE = re.compile(r"(?!0+-0+$)[0-9]{1,15}-[0-9]{1,10}")  # nothing is before 0-0: Redis refuses to look


class AuditEntry(Value):
    """An action of a person or program."""

    id: str = Field(description="its position in the log: `before` continues after it")
    at: float = Field(description="when it was written, seconds since 1970 by Redis's clock")
    action: str = Field(description="the action, such as `run.cancel`")
    outcome: str = Field(
        description="done; refused: the token lacks the right; begun: its process ended meanwhile, so it may not have been done"
    )
    by: str = Field(description="who acted: the name of a token, or `user@host`")
    via: str = Field(description="the way: http, cli, python or flower")
    verified: bool = Field(description="whether a token or password proves the name; else it is a claim")
    address: str = Field(
        default="", description="the address of the client; empty if it acted on a machine of the fleet"
    )
    by_tenant: str = Field(default="", description="the tenant of the token")
    tenant: str = Field(default="", description="the tenant of what was acted on; empty for none, and for the fleet")
    run_id: str = Field(default="", description="the run; of a retry or fork the source")
    target: str = Field(
        default="",
        description="what was acted on: a step, schedule, batch, session, memory, model, parked item, worker or queue",
    )
    detail: str = Field(
        default="", description="the result, such as the status or the new run; the reason of a refusal"
    )
    unreadable: Unreadable = ""

    @property
    def author(self) -> str:
        """Return who acted, for people: a name that nothing proves is marked as a claim, a token of another tenant has that beside it."""
        if not self.verified:
            return f"{self.by} (claimed)"
        return (
            f"{self.by} (tenant {self.by_tenant!r})"
            if self.via == "http" and self.by_tenant != self.tenant
            else self.by
        )


class AuditPage(Value):
    """A page of the audit log, the newest entry first."""

    entries: list[AuditEntry] = Field(description="the entries")
    next: str | None = Field(default=None, description="`before` of the next page; null at the end")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The entries to list."""

    tenant: str | None = None
    """None: those of all tenants."""
    since: float | None = None
    """Seconds since 1970."""
    by: str = ""
    action: str = ""
    """An action, or the first part of several: `run` for `run.cancel` and others."""
    run_id: str = ""

    def includes(self, entry: AuditEntry) -> bool:
        """Return whether an entry of these tenants and this time is wanted."""
        return (
            self.by in ("", entry.by)
            and self.run_id in ("", entry.run_id)
            and (self.action in ("", entry.action) or entry.action.startswith(f"{self.action}."))
        )


class AuditStore:
    """The audit log of an installation."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._prefix = f"{shard_key(ledger.redis, SHARD)}:audit"

    def append(
        self,
        action: str,
        outcome: Outcome,
        actor: Actor,
        *,
        tenant: str,
        run_id: str = "",
        target: str = "",
        detail: str = "",
        replaced: str = "",
    ) -> str:
        """Append an entry, in place of the one with the id `replaced`; return its id. Raises UnavailableError."""
        entry: dict[str, JsonValue] = {
            "action": action, "outcome": outcome, "by": one_line(actor.name) or "unknown", "via": actor.via,
            "verified": actor.verified, "address": one_line(actor.address, 100), "by_tenant": actor.tenant, "tenant": tenant,
            "run_id": one_line(run_id, MAX_TEXT_CHARS),
            "target": one_line(target, MAX_TEXT_CHARS), "detail": one_line(detail, MAX_TEXT_CHARS),
        }  # fmt: skip
        given = {name: value for name, value in entry.items() if value != ""}
        return self._call(_stream(tenant, outcome), replaced, to_json({**given, "key": token_hex(6)}))

    def remove(self, tenant: str, entry_id: str) -> None:
        """Remove an entry of an action that was not done."""
        self._call(_stream(tenant, "begun"), entry_id, "")

    def find_page(self, wanted: AuditFilter, *, before: str | None = None, most: int = 50) -> AuditPage:
        """Return a page, the newest entry first, after the `next` of an earlier one; it may be short though `next` is set.

        Raises ConfigError for another `before`.
        """
        if before is not None and not _PLACE.fullmatch(before):
            raise ConfigError(
                f"{before[:100]!r} is no position in the audit log; use `next` of an earlier page", source="before"
            )
        oldest = max(wanted.since or 0.0, clock.now() - _kept_s())
        found: list[AuditEntry] = []
        at, scanned = before, 0
        while True:
            piece = self._newest(wanted.tenant, at, oldest, PIECE)
            for place, text in piece:
                at = place
                entry = _entry(place, text)
                if wanted.includes(entry):
                    found.append(entry)
                if len(found) == most:
                    return AuditPage(entries=found, next=at)
            scanned += len(piece)
            if len(piece) < PIECE:
                return AuditPage(entries=found)
            if scanned >= SCANNED_PER_PAGE:
                return AuditPage(entries=found, next=at)

    def iterate(self, wanted: AuditFilter) -> Iterator[AuditEntry]:
        """Yield all, the newest first."""
        before: str | None = None
        while True:
            page = self.find_page(wanted, before=before, most=MAX_PAGE)
            yield from page.entries
            if (before := page.next) is None:
                return

    def _newest(self, tenant: str | None, before: str | None, oldest: float, most: int) -> list[tuple[str, str]]:
        """Return the newest entries before a position, of one tenant or of all; those of streams that ended earlier are not read."""
        end, start = f"({before}" if before else "+", f"{int(oldest * 1000)}"
        found: list[tuple[str, str]] = []
        streams = self._streams(tenant, oldest)
        for index in range(0, len(streams), STREAMS_AT_ONCE):
            part = streams[index : index + STREAMS_AT_ONCE]
            if len(found) == most and part[0][1] < _place(found[-1][0])[0]:
                break
            found = sorted(
                [*found, *self._read([name for name, _ in part], start, end, most)],
                key=lambda each: _place(each[0]),
                reverse=True,
            )[:most]
        return found

    def _streams(self, tenant: str | None, oldest: float) -> list[tuple[str, float]]:
        """Return the streams with the time of their last entry (ms), the newest first."""
        if tenant is not None:
            return [(_stream(tenant, outcome), float("inf")) for outcome in ("done", "refused")]
        redis, key = self._ledger.redis, f"{self._prefix}:streams"
        return cast(
            "list[tuple[str, float]]",
            self._ledger.with_retries(
                lambda: redis.zrange(key, "+inf", int(oldest * 1000), desc=True, byscore=True, withscores=True)
            ),
        )

    def _read(self, names: Sequence[str], start: str, end: str, most: int) -> list[tuple[str, str]]:
        def ask() -> list[list[tuple[str, dict[str, str]]]]:
            with self._ledger.redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.xrevrange(f"{self._prefix}:{name}", end, start, count=most)
                return cast("list[list[tuple[str, dict[str, str]]]]", pipe.execute())

        return [(place, fields.get("e", "")) for rows in self._ledger.with_retries(ask) for place, fields in rows]

    def _call(self, stream: str, replaced: str, entry: str) -> str:
        most = MAX_REFUSALS if stream.startswith("refused:") else settings().audit_entries
        args = (stream, most, int(_kept_s() * 1000), replaced, entry)
        return str(self._ledger.caller.call_shard("audit/append", SHARD, *args))


def _stream(tenant: str, outcome: str) -> str:
    return f"{'refused' if outcome == 'refused' else 'done'}:{tenant}"


def _kept_s() -> float:
    return settings().audit_days * DAY_S


def _place(text: str) -> tuple[int, int]:
    ms, _, number = text.partition("-")
    return int(ms), int(number)


def _entry(place: str, text: str) -> AuditEntry:
    at = _place(place)[0] / 1000

    def read() -> AuditEntry:
        return stored(AuditEntry, {**json.loads(text), "id": place, "at": at}, ignores_unknown=True)

    def row(why: str) -> AuditEntry:
        return AuditEntry(id=place, at=at, action="", outcome="", by="", via="", verified=False, unreadable=why)

    return readable(read, row, remedy="it goes by itself after CANTATA_AUDIT_DAYS")
