"""Schedules: create, read, change and fire. `ledger/run.lua` lists the keys.

A schedule lies in one shard with the runs that it starts, so one script moves it to its next time and accepts the run.
That is the shard of its name. If its turns belong to a session, it is the session's shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, unquote

from pydantic import Field

from cantata import bounds
from cantata.errors import ConfigError, StoredDataError
from cantata.features.schedules.times import times
from cantata.flows.schedules import Schedule, ScheduledRun, ScheduleView, describe_target, describe_timing
from cantata.ledger import conversations
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import definitions_digest, id_in_shard, shard_of
from cantata.ledger.redis.pieces import ask_shards
from cantata.ledger.redis.records import check_script, command, readable
from cantata.ledger.scripts import named, number_text
from cantata.values import JsonValue, stored

FOREVER = "inf"  # in S:schedules: not looked at
MAX_PENDING = 1000  # times of one schedule that wait
READ_AT_ONCE = 100  # schedules of a shard that one call reads, with some five commands for each
CALLS_AT_ONCE = 8  # in one round trip
LISTED_RUNS = 1  # of each schedule of a list
SHOWN_RUNS = 20
NEXT_TIMES = 5  # that are shown

Origin = Literal["config", "api"]
Outcome = Literal["new", "accepted", "known", "queued", "skipped", "waiting", "gone"]
"""What `fire.lua` replies for a time."""


class ScheduleRecord(ScheduleView):
    """A schedule as it is shown, and what its runs are started with."""

    request: dict[str, JsonValue] = Field(exclude=True, description="of its runs, with placeholders")
    labels: dict[str, str] = Field(exclude=True, description="of its runs")
    digest: str = Field(exclude=True, description="of the definitions of its runs")
    mark: str = Field(exclude=True, description="changes with each edit")
    quota: str = Field(exclude=True, description="of its tenant, as JSON")
    next_ms: int | None = Field(exclude=True, description="its next time, milliseconds since 1970")
    now_ms: int = Field(exclude=True, description="the time of the reading, plus what a test has skipped")
    skipped_ms: int = Field(exclude=True, description="what a test has skipped")
    is_paused: bool = Field(exclude=True, description="whether it is paused, which is known though it cannot be read")

    @property
    def scope(self) -> str:
        """Its name in keys."""
        return scope_of(self.tenant, self.name)

    @property
    def shard(self) -> int:
        """The shard of it and its runs."""
        return shard_for(self.scope, self.spec)

    @property
    def spec(self) -> Schedule:
        """The schedule as it was declared. Raises ConfigError if its record cannot be read."""
        if self.schedule is None or self.unreadable:
            raise ConfigError(self.unreadable, source=f"schedule {self.name!r}", code="unreadable")
        return self.schedule


@dataclass(frozen=True, slots=True)
class Firing:
    """The runs to start for times of a schedule that have come, and where it moves. Empty texts stand for nothing."""

    shard: int
    scope: str
    mark: str
    overlap: str
    items: Sequence[Mapping[str, str]]
    """Of each time its run, as `fire.lua` has them."""
    read: str | None = None
    """The next time that was read; if None, the schedule stays at its time."""
    next_at: str = ""
    look_at: str = FOREVER
    retry_at: str | None = None
    missed: int = 0
    skipped: int = 0
    error: str | None = None

    def as_call(self, resend_ms: int) -> tuple[int, tuple[str, str]]:
        """Return the shard and the arguments of the script; `resend_ms` is that of the process that calls it."""
        given = {
            name: value for name, value in asdict(self).items() if value is not None and name not in ("shard", "scope")
        }
        own = {} if resend_ms else {"resend_ms": 0}
        return self.shard, (self.scope, to_json({**given, **own}))


class Fired(NamedTuple):
    """The result of a firing: of each item its outcome and the priority of its run, and the time (ms)."""

    outcomes: Sequence[tuple[Outcome, int]]
    now_ms: int


def scope_of(tenant: str, name: str) -> str:
    """Return the name of a schedule in keys: with its tenant, percent-encoded."""
    return f"{quote(tenant, safe='')}/{name}"


def names_in(scope: str) -> tuple[str, str]:
    """Return the tenant and the name of a schedule."""
    tenant, _, name = scope.partition("/")
    return unquote(tenant), name


def shard_for(scope: str, spec: Schedule) -> int:
    """Return the shard of a schedule and of all its runs."""
    session = spec.turn and spec.turn.session
    return conversations.shard_of_session(conversations.scoped(spec.tenant, session)) if session else shard_of(scope)


def run_id_at(shard: int, scope: str, at_ms: int | str) -> str:
    """Return the id of the run for a time of a schedule in this shard: always the same."""
    return id_in_shard(shard, sha256(f"{scope}\n{at_ms}".encode()).hexdigest()[:16])


class ScheduleStore:
    """The schedules of a ledger, of all tenants. Safe to share between threads; every call may be repeated."""

    def __init__(self, ledger: Ledger) -> None:
        self._caller = ledger.caller

    def put(
        self,
        shard: int,
        scope: str,
        fields: Mapping[str, str],
        definitions: str,
        look_at_ms: int | None,
        *,
        only_new: bool = False,
    ) -> bool:
        """Create or replace a schedule; return False if there is one already and it should be new. With the same timing, its times go on.

        One in another shard, which belongs to another session, is deleted first: so no time has two runs, whatever dies in between.
        So is one that cannot be read, wherever it lies. If that was paused, so is the new one.
        Raises ConfigError if another call creates it for another session at the same time.

        Args:
            shard: Where it lies, as `shard_for` returns it.
            scope: Its name, as `scope_of` returns it.
            fields: Those of its hash, without the digest of its definitions.
            definitions: The definitions of its runs (JSON text).
            look_at_ms: When its next time is due; None if there is none.
            only_new: Leave a schedule of this name as it is.
        """
        found_in = set(self._shards_with(scope))
        if found_in and only_new:
            return False
        known = self.read(*names_in(scope)) if found_in else None
        elsewhere = found_in - {shard}
        if known and known.unreadable:
            elsewhere = found_in
        if known and elsewhere and known.is_paused:
            fields, look_at_ms = {**fields, "paused": "1", "pause_note": known.pause_note}, None
        given: dict[str, JsonValue] = {
            "fields": {**fields, "definitions": definitions_digest(definitions)}, "tenant": names_in(scope)[0],
            "look_at": number_text(look_at_ms) or FOREVER,
            **({"only_new": True} if only_new else {}),
        }  # fmt: skip
        for other in elsewhere:
            self._edit_in(other, scope, {"delete": True})
        call = partial(self._caller.call_shard, "schedules/put", shard, scope)
        reply = cast(str, call(to_json(given)))
        if reply == "undefined":
            reply = cast(str, call(to_json({**given, "definitions_text": definitions})))
        if reply == "ok" and set(self._shards_with(scope)) - {shard}:
            self._edit_in(shard, scope, {"delete": True})
            raise ConfigError(
                "another call changed its session at the same time; try again",
                source=f"schedule {names_in(scope)[1]!r}",
            )
        return reply == "ok"

    def read(self, tenant: str, name: str) -> ScheduleRecord | None:
        """Return a schedule with its last runs; None if there is none."""
        scope = scope_of(tenant, name)
        for shard in self._shards_with(scope):
            if found := self._caller.call_shard("schedules/read", shard, SHOWN_RUNS, scope):
                return _listed(*found[0])
        return None

    def find(self, tenant: str | None) -> list[ScheduleRecord]:
        """Return the schedules of a tenant, or of all if it is None, by name, each with its last run."""
        prefix = "" if tenant is None else scope_of(tenant, "")
        redis = self._caller.redis
        listed = self._caller.with_retries(
            lambda: ask_shards(redis, lambda pipe, key: pipe.zrange(f"{key}:schedules", 0, -1))
        )
        calls = [
            (shard, (LISTED_RUNS, *names[start : start + READ_AT_ONCE]))
            for shard, names in enumerate([name for name in names if name.startswith(prefix)] for names in listed)
            for start in range(0, len(names), READ_AT_ONCE)
        ]
        parts = (calls[start : start + CALLS_AT_ONCE] for start in range(0, len(calls), CALLS_AT_ONCE))
        replies = [reply for part in parts for reply in self._caller.call_all("schedules/read", part)]
        return sorted(
            (_listed(*each) for reply in replies for each in reply), key=lambda each: (each.tenant, each.name)
        )

    def pause(self, scope: str, note: str) -> bool:
        """Pause a schedule: none of its times are run. Return False if there is none, as the methods below do."""
        return self._edit(scope, {"pause": note}) == "ok"

    def resume(self, scope: str, next_ms: int | None, look_at_ms: int | None) -> bool:
        """Have a paused schedule go on at a time."""
        return (
            self._edit(scope, {"resume": number_text(next_ms), "look_at": number_text(look_at_ms) or FOREVER}) == "ok"
        )

    def delete(self, scope: str) -> bool:
        """Delete a schedule; its runs go on."""
        return self._edit(scope, {"delete": True}) == "ok"

    def add_pending(self, scope: str, times_ms: Iterable[int], labels: Mapping[str, str] | None) -> str:
        """Have times run one after the other, or at once if runs may overlap.

        Return ok, unknown, or full if more than MAX_PENDING would wait.
        """
        entries: list[JsonValue] = [
            to_json({"at": str(at_ms), **({"labels": to_json(dict(labels))} if labels else {})}) for at_ms in times_ms
        ]
        return self._edit(scope, {"pending": entries, "max": MAX_PENDING})

    def fire(self, firings: Sequence[Firing]) -> Sequence[Fired | Exception]:
        """Start the runs of times that have come, and move each schedule to its next time.

        The result of a schedule that was changed meanwhile has no outcomes; that of one whose record cannot be used is the error.
        """
        replies = self._caller.call_all(
            "schedules/fire",
            [firing.as_call(self._caller.resend_ms) for firing in firings],
            on_error=lambda error: [error],
        )
        return [_fired(reply) for reply in replies]

    def overdue(self, seconds: float) -> list[str]:
        """Return the schedules, as scoped names, that should have been fired so many seconds ago; at most 100 of a shard."""
        redis = self._caller.redis
        now_s, micros = self._caller.with_retries(redis.time)
        by_ms = int((now_s + micros / 1e6 - seconds) * 1000)
        found = self._caller.with_retries(
            lambda: ask_shards(
                redis, lambda pipe, key: pipe.zrangebyscore(f"{key}:schedules", "-inf", by_ms, start=0, num=100)
            )
        )
        return [scope for scopes in found for scope in scopes]

    def _shards_with(self, scope: str) -> list[int]:
        """Return the shards in which a schedule lies: one, or none."""
        redis = self._caller.redis
        scores = self._caller.with_retries(
            lambda: ask_shards(redis, lambda pipe, key: pipe.zscore(f"{key}:schedules", scope))
        )
        return [shard for shard, score in enumerate(scores) if score is not None]

    def _edit(self, scope: str, change: Mapping[str, JsonValue]) -> str:
        replies = [self._edit_in(shard, scope, change) for shard in self._shards_with(scope)]
        return replies[0] if replies else "unknown"

    def _edit_in(self, shard: int, scope: str, change: Mapping[str, JsonValue]) -> str:
        return cast(str, self._caller.call_shard("schedules/edit", shard, scope, to_json(dict(change))))


def _fired(reply: Sequence[Any]) -> Fired | Exception:
    if reply and isinstance(reply[0], Exception):
        return reply[0]
    return Fired(list(zip(reply[0][::2], reply[0][1::2], strict=True)), reply[1]) if reply else Fired((), 0)


def _listed(
    scope: str, flat: Sequence[str], pending: int, runs: Sequence[Sequence[str]], now_ms: int, fault: str = ""
) -> ScheduleRecord:
    """Return a schedule from the reply of `read.lua`."""
    tenant, name = names_in(scope)
    fields = named(flat)

    def read() -> ScheduleRecord:
        check_script(fault)
        return _record(tenant, name, fields, pending, runs, now_ms)

    def row(why: str) -> ScheduleRecord:
        origin: Origin = "config" if fields.get("origin") == "config" else "api"
        return ScheduleRecord(
            name=name,
            tenant=tenant,
            state="unreadable",
            timing="",
            target="",
            declared_by=origin,
            definitions="",
            pause_note=fields.get("pause_note", ""),
            is_paused="paused" in fields,
            next_at=[],
            fired=0,
            skipped=0,
            missed=0,
            pending=pending,
            error="",
            created_at=0.0,
            runs=[],
            schedule=None,
            request={},
            labels={},
            digest="",
            mark="",
            quota="{}",
            next_ms=None,
            now_ms=now_ms,
            skipped_ms=0,
            unreadable=why,
        )

    return readable(read, row, remedy=f"replace it, or delete it with {command('schedules delete', name, tenant)}")


def _record(
    tenant: str, name: str, fields: Mapping[str, str], pending: int, runs: Sequence[Sequence[str]], now_ms: int
) -> ScheduleRecord:
    spec, skipped_ms = stored(Schedule, fields["spec"], ignores_unknown=True), int(fields.get("skipped_ms", 0))
    next_ms = int(fields["next"]) if fields.get("next") else None
    if next_ms is not None and not bounds.FIRST_INSTANT_S <= next_ms / 1000 <= bounds.LAST_INSTANT_S:
        raise StoredDataError(
            f"its next time, {next_ms} ms, is not between {bounds.FIRST_YEAR} and {bounds.LAST_YEAR + 1}"
        )
    shown = [] if next_ms is None or "paused" in fields else [next_ms, *islice(times(spec, next_ms), NEXT_TIMES - 1)]
    last = [
        ScheduledRun(
            run_id=run_id,
            scheduled_at=int(at) / 1000,
            status=status,
            started_at=int(started) / 1000 if started else None,
        )
        for run_id, at, status, started in runs
    ]
    return ScheduleRecord(
        name=name,
        tenant=tenant,
        state="paused" if "paused" in fields else "active" if next_ms else "over",
        timing=describe_timing(spec),
        target=describe_target(spec),
        declared_by=cast(Origin, fields["origin"]),
        definitions=fields["definitions"][:12],
        pause_note=fields.get("pause_note", ""),
        next_at=[at / 1000 for at in shown],
        fired=int(fields.get("fired", 0)),
        skipped=int(fields.get("skipped", 0)),
        missed=int(fields.get("missed", 0)),
        pending=pending,
        error=fields.get("error", ""),
        created_at=int(fields["created_at"]) / 1000,
        runs=last,
        schedule=spec,
        request=json.loads(fields["request"]),
        labels=json.loads(fields["labels"]),
        digest=fields["definitions"],
        mark=fields["mark"],
        quota=fields["quota"],
        next_ms=next_ms,
        now_ms=now_ms + skipped_ms,
        skipped_ms=skipped_ms,
        is_paused="paused" in fields,
    )
