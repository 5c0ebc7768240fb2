"""Schedules of a tenant: created, changed, triggered, and applied from a configuration."""

from __future__ import annotations

import builtins
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Any, Literal, NamedTuple

from cantata import bounds
from cantata.config.faults import checked
from cantata.engine.engine import Engine
from cantata.engine.publisher import COORDINATOR
from cantata.engine.requests import CheckedChain, CheckedTurn, checked_schedule
from cantata.engine.start import check_labels, check_size, new_id, run_settings
from cantata.errors import ConfigError, Fault
from cantata.features.audit.audit import RecordedAction, recorded
from cantata.features.schedules.firing import STARTED, item_of, started
from cantata.features.schedules.schedule_store import (
    MAX_PENDING,
    Firing,
    Origin,
    Outcome,
    ScheduleRecord,
    ScheduleStore,
    scope_of,
    shard_for,
)
from cantata.features.schedules.times import delay_ms, first_time, times
from cantata.flows.definitions import Quota
from cantata.flows.schedules import Schedule
from cantata.flows.webhooks import webhooks_of
from cantata.ledger import conversations
from cantata.ledger.encoding import to_json
from cantata.ledger.quotas import KeptItem
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import RedisRefusal
from cantata.ledger.redis.keys import definitions_digest, id_in_shard
from cantata.ledger.redis.redis_errors import is_outage
from cantata.ledger.run_store import offer_of
from cantata.text.suggestions import did_you_mean
from cantata.values import NAME, JsonValue, as_text, checked_name, stored

UNKNOWN = "unknown_schedule"
BY_CONFIG = "as the configuration declares it"
PENDING_BYTES = 30  # of a time that waits, beside its labels


class Triggered(NamedTuple):
    """The result of a trigger."""

    outcome: Outcome
    """new; or by the overlap of the schedule queued or skipped."""
    run_id: str
    """The run; empty if none was started."""


class ScheduleChange(NamedTuple):
    """A difference between the schedules of a configuration and those that are kept."""

    kind: Literal["added", "changed", "removed"]
    name: str
    tenant: str
    fields: Mapping[str, tuple[JsonValue, JsonValue]]
    """Field → its values before and after, of a changed one; null stands for the default."""
    spec: Schedule | None
    """The schedule as declared; None of a removed one."""


class Schedules:
    """The schedules of a tenant ("" for those without one).

    Every method raises ConfigError for a schedule that does not exist (`unknown_schedule`) or has faults, and UnavailableError if Redis
    cannot be reached.
    """

    def __init__(self, engine: Engine, tenant: str = "") -> None:
        self._engine = engine
        self._tenant = tenant
        self._store = ScheduleStore(engine.ledger)

    def of(self, tenant: str) -> Schedules:
        """Return the schedules of another tenant."""
        return Schedules(self._engine, tenant)

    def list(self) -> list[ScheduleRecord]:
        """Return all schedules by name, each with its last run."""
        return self._store.find(self._tenant)

    def list_all(self) -> builtins.list[ScheduleRecord]:
        """Return the schedules of all tenants, for operators."""
        return self._store.find(None)

    def find(self, name: str) -> ScheduleRecord | None:
        """Return a schedule, with its last 20 runs; None if there is none."""
        return self._store.read(self._tenant, name) if re.fullmatch(NAME, name) else None

    def get(self, name: str) -> ScheduleRecord:
        """Return the same; raise ConfigError if there is none."""
        found = self.find(name)
        if found is None:
            known = did_you_mean(name, [each.name for each in self.list()])
            raise ConfigError(
                f"there is no schedule {name!r}{known or '; none was applied or created yet'}", code=UNKNOWN
            )
        return found

    def create(
        self,
        name: str,
        schedule: Schedule | Mapping[str, Any],
        *,
        replace: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> ScheduleRecord:
        """Create a schedule, whose runs have the current definitions.

        Args:
            name: Letters, digits and `. _ -`.
            schedule: The schedule, or its fields as in a configuration.
            replace: Replace one of this name; its times go on as they were, unless they change.
            labels: Labels of its runs, which replace its own.
        """
        spec = _checked(name, schedule)
        check_labels({**spec.labels, **(labels or {})})
        spec = spec.model_copy(
            update={"labels": {**spec.labels, **(labels or {}), **({"tenant": self._tenant} if self._tenant else {})}}
        )
        if spec.tenant != self._tenant:
            raise ConfigError(
                f"the label 'tenant' is {spec.tenant!r}, but this is a schedule of tenant {self._tenant!r}", source=name
            )
        if first_time(spec, _now_ms()) is None:
            raise ConfigError("its time has passed", source=f"schedule {name!r}")
        if not self._put(
            name, spec, "change" if replace and self.find(name) else "create", "api", only_new=not replace
        ):
            raise ConfigError(
                f"there is a schedule {name!r} already; replace or delete it", source=name, code="schedule_exists"
            )
        return self.get(name)

    def delete(self, name: str) -> None:
        """Delete a schedule; its open runs go on."""
        scope = self.get(name).scope
        with self._recorded("delete", name) as entry:
            entry.was_done = self._store.delete(scope)

    def pause(self, name: str, note: str = "") -> ScheduleRecord:
        """Pause a schedule: its times pass without a run. `note` says why, for people."""
        scope = self.get(name).scope
        with self._recorded("pause", name) as entry:
            entry.detail, entry.was_done = note, self._store.pause(scope, note)
        return self.get(name)

    def resume(self, name: str) -> ScheduleRecord:
        """Have a paused schedule go on with the next of its times; those in its pause are not run."""
        known = self.get(name)
        next_ms = next(times(known.spec, known.now_ms), None)
        look_at = _look_at(known.spec, known.scope, next_ms, known.skipped_ms)
        with self._recorded("resume", name) as entry:
            entry.was_done = self._store.resume(known.scope, next_ms, look_at)
        return self.get(name)

    def trigger(self, name: str, *, labels: Mapping[str, str] | None = None) -> Triggered:
        """Start a run of a schedule now, paused or not, as its overlap allows. Raises ConfigError if a quota refuses it."""
        known = self.get(name)
        run_id = id_in_shard(known.shard, new_id())
        own = {**known.labels, **(labels or {})}
        check_labels(own)
        item = item_of(known.spec, known.scope, known.request, own, known.now_ms, run_id=run_id)
        firing = Firing(known.shard, known.scope, known.mark, known.spec.overlap, [item])
        quota = stored(Quota, known.quota, ignores_unknown=True)
        with (
            self._engine.ledger.quotas.start(self._tenant, quota, len(item["request"])),
            self._recorded("trigger", name) as entry,
        ):
            if known.spec.overlap == "cancel_previous":
                for run in known.runs:
                    if run.status in ("accepted", "running"):
                        self._engine.ledger.runs.cancel(run.run_id, by=entry.actor.signature())
            fired = self._store.fire([firing])[0]
            if isinstance(fired, Exception):
                raise ConfigError(
                    f"schedule {name!r} cannot be used as it is stored ({fired}); replace or delete it",
                    source="trigger",
                ) from fired
            if not fired.outcomes:
                raise ConfigError(f"schedule {name!r} was changed meanwhile; try again", source="trigger")
            entry.detail = f"{fired.outcomes[0][0]}: {run_id}"
        runs = [*started(firing, fired)]
        if runs:
            self._engine.publisher.announce_runs(runs)
        outcome = fired.outcomes[0][0]
        return Triggered("new", run_id) if outcome in STARTED else Triggered(outcome, "")

    def backfill(self, name: str, start: datetime, end: datetime, *, labels: Mapping[str, str] | None = None) -> int:
        """Run the times of a schedule from `start` to `end`, both included, one after the other; at once if its runs may overlap.

        A time whose run is kept is not run again. While the schedule is paused, they wait. Returns the number of times.
        """
        known = self.get(name)
        for moment, word in ((start, "start"), (end, "end")):
            bounds.check_moment(moment, word)
        first_ms, last_ms = (_moment_ms(each, known.spec) for each in (start, end))
        within = itertools.takewhile(lambda at_ms: at_ms <= last_ms, times(known.spec, first_ms - 1))
        found = builtins.list(itertools.islice(within, MAX_PENDING + 1))
        check_labels({**known.labels, **(labels or {})})
        if not found:
            return 0
        size = (len(to_json(dict(labels or {}))) + PENDING_BYTES) * len(found)
        quota = self._engine.definitions.limits.quota_of(self._tenant)
        with self._engine.ledger.quotas.store(self._tenant, quota, size), self._recorded("backfill", name) as entry:
            if len(found) > MAX_PENDING or self._store.add_pending(known.scope, found, labels) == "full":
                raise ConfigError(
                    f"at most {MAX_PENDING} times of a schedule may wait; choose a shorter range", source="backfill"
                )
            entry.detail = f"{len(found)} times"
        return len(found)

    def plan(self) -> Sequence[ScheduleChange]:
        """Return what `apply` would change, for all tenants: a schedule belongs to the tenant in its label `tenant`.

        Compared are the schedules of the client's configuration with those that a configuration declared, and their definitions.
        """
        declared = {
            (spec.tenant, name): _checked(name, spec) for name, spec in self._engine.definitions.schedules.items()
        }
        for (_, name), spec in declared.items():
            self._request(name, spec)
        kept = {(each.tenant, each.name): each for each in self._store.find(None)}
        changes = []
        for key, spec in declared.items():
            fields = self._differences(kept[key], spec) if key in kept else {}
            if key not in kept or fields:
                changes.append(ScheduleChange("changed" if key in kept else "added", key[1], key[0], fields, spec))
        gone = [key for key, each in kept.items() if each.declared_by == "config" and key not in declared]
        return [*changes, *(ScheduleChange("removed", name, tenant, {}, None) for tenant, name in gone)]

    def apply(self, changes: Sequence[ScheduleChange] | None = None) -> Sequence[ScheduleChange]:
        """Make the changes that `plan` returned, or would return now; return them.

        Raises ConfigError, when all others are made, with each change that cannot be made.
        """
        changes = self.plan() if changes is None else changes
        faults: builtins.list[Fault] = []
        for change in changes:
            try:
                if change.spec is None:
                    with self.of(change.tenant)._recorded("delete", change.name) as entry:
                        entry.detail = BY_CONFIG
                        entry.was_done = self._store.delete(scope_of(change.tenant, change.name))
                else:
                    self._put(change.name, change.spec, "create" if change.kind == "added" else "change", "config")
            except (ConfigError, RedisRefusal) as error:
                if is_outage(error):
                    raise
                where = f"schedule {change.name!r}" + (f" of tenant {change.tenant!r}" if change.tenant else "")
                faults.append(Fault(f"it is not {change.kind}, but all others are as declared: {error}", where=where))
        if faults:
            raise ConfigError(faults, source="apply")
        return changes

    def _recorded(self, verb: str, name: str) -> AbstractContextManager[RecordedAction]:
        return recorded(self._engine.ledger, f"schedule.{verb}", tenant=self._tenant, target=name)

    def _request(self, name: str, spec: Schedule) -> CheckedTurn | CheckedChain:
        try:
            return checked_schedule(name, spec, self._engine.definitions)
        except ConfigError as error:
            raise ConfigError(error.faults, source=f"schedule {name!r}", code=error.code, asked=error.asked) from error

    def _differences(self, known: ScheduleRecord, spec: Schedule) -> dict[str, tuple[JsonValue, JsonValue]]:
        def values(each: Schedule, origin: str, definitions: str) -> dict[str, JsonValue]:
            return {
                **each.model_dump(mode="json", exclude_defaults=True),
                "definitions": definitions[:12],
                "declared by": origin,
            }

        if known.unreadable:
            return {"record": (known.unreadable, "replaced")}
        before = values(known.spec, known.declared_by, known.digest)
        after = values(spec, "config", definitions_digest(self._engine.definitions_text))
        return {
            key: (before.get(key), after.get(key)) for key in {**before, **after} if before.get(key) != after.get(key)
        }

    def _put(self, name: str, spec: Schedule, verb: str, origin: Origin, *, only_new: bool = False) -> bool:
        definitions, scope = self._engine.definitions, scope_of(spec.tenant, name)
        request = self._request(name, spec)
        check_size(request.kind, request.text, definitions)
        settings = run_settings(definitions, request.timeout, request.target)
        asked = [*request.webhooks, *spec.webhooks]
        hooks = webhooks_of(definitions, asked, name=request.target, labels=spec.labels)
        next_ms = first_time(spec, _now_ms())
        session = conversations.run_session(spec.tenant, spec.turn.session if spec.turn else None, definitions.sessions)
        offer = offer_of(
            kind=request.kind,
            tenant=spec.tenant,
            queue=COORDINATOR,
            webhooks=hooks,
            session=session,
            max_deliveries=definitions.limits.quota_of(spec.tenant).open_deliveries,
            **settings,
        )
        fields = {
            "spec": spec.model_dump_json(exclude_defaults=True), "timing": spec.timing(), "request": request.text, "offer": to_json(offer),
            "labels": to_json(dict(spec.labels)), "quota": definitions.limits.quota_of(spec.tenant).model_dump_json(), "origin": origin,
            "next": "" if next_ms is None else str(next_ms),
        }  # fmt: skip
        look_at, shard = _look_at(spec, scope, next_ms), shard_for(scope, spec)
        with ExitStack() as stack:
            if origin == "api":  # what an operator declares is counted, but no tenant may stop a deployment
                size, quota = sum(map(len, fields.values())), definitions.limits.quota_of(spec.tenant)
                item = KeptItem(shard, f"schedule:{scope}")
                stack.enter_context(self._engine.ledger.quotas.store(spec.tenant, quota, size, name=item))
            entry = stack.enter_context(self.of(spec.tenant)._recorded(verb, name))
            entry.detail = BY_CONFIG if origin == "config" else ""
            text = self._engine.definitions_text
            entry.was_done = self._store.put(shard, scope, fields, text, look_at, only_new=only_new)
            return entry.was_done


def describe(change: ScheduleChange) -> Sequence[str]:
    """Return the lines of a change for people."""
    of_tenant = f" (tenant {change.tenant})" if change.tenant else ""
    signs = {"added": "+", "changed": "~", "removed": "-"}
    lines = [f"{signs[change.kind]} {change.name}{of_tenant}"]
    return [
        *lines,
        *(f"    {field}: {_shown(before)} → {_shown(after)}" for field, (before, after) in change.fields.items()),
    ]


def _shown(value: JsonValue) -> str:
    return "(default)" if value is None else as_text(value)


def _checked(name: str, schedule: Schedule | Mapping[str, Any]) -> Schedule:
    """Return a schedule. Raises ConfigError with every fault of it and of its name."""
    source = f"schedule {name!r}"
    try:
        checked_name("schedule", name)
    except ValueError as error:
        raise ConfigError([Fault(str(error))], source=source) from None
    return schedule if isinstance(schedule, Schedule) else checked(Schedule, dict(schedule), source=source)


def _moment_ms(moment: datetime, spec: Schedule) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=spec.zone)).timestamp() * 1000)


def _look_at(spec: Schedule, scope: str, next_ms: int | None, skipped_ms: int = 0) -> int | None:
    return None if next_ms is None else next_ms + delay_ms(spec, scope, next_ms) - skipped_ms


def _now_ms() -> int:
    return int(clock.now() * 1000)
