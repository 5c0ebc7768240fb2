"""Runs as a whole: accept, fork, cancel, and append to their events and log lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from redis.exceptions import ResponseError

from cantata.errors import CantataError, UnknownRunError
from cantata.flows.graph import START, Step
from cantata.flows.wire import RunStatus
from cantata.ledger.encoding import STATUS_FIELDS, shown_status, step_text, to_json
from cantata.ledger.intervals import RESEND_MS, RETENTION_S
from cantata.ledger.records import Accepted, RunSession
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import definitions_digest, definitions_key, run_key, shard_of
from cantata.ledger.redis.records import ask_apart, good
from cantata.ledger.scripts import ScriptCaller
from cantata.operation import fault_points
from cantata.values import ErrorInfo, JsonValue


def offer_of(
    *,
    kind: str,
    tenant: str,
    timeout_s: float,
    max_attempts: int,
    max_steps: int,
    retention_s: float,
    queue: str,
    name: str = "",
    timeout_by: str = "",
    webhooks: Sequence[JsonValue] = (),
    max_deliveries: int | None = None,
    session: RunSession | None = None,
) -> dict[str, JsonValue]:
    """Return an offer for `accept` of `accepting.lua`, without the fields that name a run's request, definitions and labels."""
    fields: dict[str, JsonValue] = {
        "kind": kind, "tenant": tenant, "timeout_ms": int(timeout_s * 1000), "timeout_by": timeout_by, "max_attempts": max_attempts,
        "max_steps": max_steps, "retention_ms": int(retention_s * 1000), **({"webhooks": to_json([*webhooks])} if webhooks else {}),
        **({"name": name} if name else {}),
    }  # fmt: skip
    if webhooks and max_deliveries is not None:
        fields["max_deliveries"] = max_deliveries
    start = step_text(Step(id=START, kind="run.start", queue=queue, decides=True, expands=True))
    offer: dict[str, JsonValue] = {"step": START, "spec": start, "resend_ms": RESEND_MS, "fields": fields}
    if session is not None:
        offer["max_waiting"] = session.max_waiting
        fields |= {
            "session": session.name,
            "session_keep_ms": int(session.keep_s * 1000),
            "session_entries": session.max_entries,
        }
    return offer


_LABELS = TypeAdapter(dict[str, str])


class RunStore:
    """The runs of a ledger."""

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller
        self._redis = caller.redis

    def accept(
        self,
        run_id: str,
        *,
        kind: str,
        request: str,
        definitions: str,
        timeout_s: float,
        max_attempts: int,
        max_steps: int,
        queue: str = "coordinator",
        labels: Mapping[str, str] | None = None,
        retention_s: float = RETENTION_S,
        session: RunSession | None = None,
        name: str = "",
        timeout_by: str = "",
        webhooks: Sequence[JsonValue] = (),
        max_deliveries: int | None = None,
    ) -> Accepted:
        """Accept a run, whose first step waits on `queue`. Repeated with the same id it changes nothing.

        The label `tenant` names its tenant. The runs of a session lie in the session's shard and run one after the other.

        Args:
            name: That of the agent, team, chain or workflow of the configuration that it runs, for metrics.
            timeout_by: The setting that `timeout_s` comes from, for messages.
            webhooks: As `flows.webhooks.webhooks_of` gives them.
            max_deliveries: Open runs that post for its tenant, beyond which its messages wait.
        """
        offer = _offer(
            request=request,
            definitions=definitions,
            labels=labels or {},
            session=session,
            webhooks=webhooks,
            kind=kind,
            name=name,
            timeout_s=timeout_s,
            timeout_by=timeout_by,
            max_attempts=max_attempts,
            max_steps=max_steps,
            retention_s=retention_s,
            queue=queue,
            max_deliveries=max_deliveries,
        )
        offer["resend_ms"] = self._caller.resend_ms
        result, priority = self._caller.call("ledger/accept", run_id, to_json(offer))
        if result == "undefined":
            result, priority = self._caller.call(
                "ledger/accept", run_id, to_json({**offer, "definitions_text": definitions})
            )
        return Accepted(result, int(priority))

    def accept_rows(self, rows: Mapping[str, str], *, batch: str, definitions: str, **settings: Any) -> list[Accepted]:
        """Accept many runs by their ids, with their requests, as `accept` does: rows of a batch, as `BatchStore.scope` names it.

        They are counted apart: their priority is lower, and they do not lower that of their tenant's other runs.
        """
        offers = {
            run_id: _offer(request=request, definitions=definitions, batch=batch, **settings)
            for run_id, request in rows.items()
        }
        for offer in offers.values():
            offer["resend_ms"] = self._caller.resend_ms
        replies = self._caller.call_runs(
            "ledger/accept", [(run_id, to_json(offer)) for run_id, offer in offers.items()]
        )
        undefined = [run_id for run_id, (result, _) in zip(offers, replies, strict=True) if result == "undefined"]
        calls = [(run_id, to_json({**offers[run_id], "definitions_text": definitions})) for run_id in undefined]
        again = dict(zip(undefined, self._caller.call_runs("ledger/accept", calls), strict=True))
        found = (again.get(run_id, reply) for run_id, reply in zip(offers, replies, strict=True))
        return [Accepted(result, int(priority)) for result, priority in found]

    def drop(self, run_ids: Sequence[str]) -> None:
        """Delete ended runs before their retention is over."""
        self._caller.call_runs("ledger/drop", [(run_id,) for run_id in run_ids])

    def definitions(self, run_id: str, digest: str) -> str:
        """Return the definitions that a run started with, as JSON text."""
        return self.definitions_in(shard_of(run_id), digest, f"run {run_id!r}")

    def definitions_in(self, shard: int, digest: str, owner: str) -> str:
        """Return the definitions that a run or schedule of a shard has, as JSON text; `owner` names it in an error."""
        text = self._caller.with_retries(lambda: self._redis.hget(definitions_key(self._redis, shard, digest), "text"))
        if text is None:
            raise CantataError(f"the definitions {digest[:12]} of {owner} have expired")
        return str(text)

    def request_of(self, run_id: str) -> tuple[str, str, str, Mapping[str, str]]:
        """Return a run's kind, request (JSON text), the digest of its definitions, and its labels; of unreadable ones only its tenant."""
        names = ["kind", "request", "definitions", "labels", "tenant"]
        kind, request, digest, labels, tenant = self._caller.with_retries(
            lambda: self._redis.hmget(run_key(self._redis, run_id), names)
        )
        if kind is None:
            raise UnknownRunError.of(run_id)
        try:
            known = _LABELS.validate_json(labels or "{}")
        except ValidationError:
            known = {"tenant": str(tenant)} if tenant else {}
        return str(kind), str(request), str(digest), known

    def kind_and_tenant(self, run_id: str) -> tuple[str, str]:
        """Return the kind and the tenant of a run. Raises UnknownRunError, and StoredDataError if its key is no hash."""
        key, names = run_key(self._redis, run_id), ["status", "kind", "tenant"]
        (reply,) = self._caller.with_retries(
            lambda: ask_apart(self._redis, [key], lambda pipe, each: pipe.hmget(each, names))
        )
        status, kind, tenant = good(reply)
        if status is None:
            raise UnknownRunError.of(run_id)
        return kind or "", tenant or ""

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run, once what was decided for it is done. Raises UnknownRunError."""
        fields = [*STATUS_FIELDS, "unfinished"]
        found = cast(
            "list[str | None]",
            self._caller.with_retries(lambda: self._redis.hmget(run_key(self._redis, run_id), fields)),
        )
        if found[0] is None:
            raise UnknownRunError.of(run_id)
        if found[-1] is not None:
            self._caller.settle(run_id)
            found = cast(
                "list[str | None]",
                self._caller.with_retries(lambda: self._redis.hmget(run_key(self._redis, run_id), fields)),
            )
        return shown_status(dict(zip(fields, found, strict=True)))

    def seconds_left(self, run_id: str) -> float | None:
        """Return the seconds until the deadline of a run whose clock runs; None if it is over, or only people can go on with it."""
        text = self._caller.with_retries(lambda: self._redis.hget(run_key(self._redis, run_id), "deadline_at"))
        return int(text) / 1000 - clock.now() if text else None

    def is_known(self, run_id: str) -> bool:
        """Return whether a run was accepted and is kept."""
        return bool(self._caller.with_retries(lambda: self._redis.exists(run_key(self._redis, run_id))))

    def cancel(
        self,
        run_id: str,
        *,
        status: RunStatus = "cancelled",
        error: ErrorInfo | None = None,
        by: Mapping[str, JsonValue] | None = None,
    ) -> RunStatus:
        """End a run; workers stop its steps within a renewal. Return its status after that. Raises UnknownRunError.

        One that cannot be ended, since its record cannot be read, is deleted.
        If workflows in Python clean up first, that is `cancelling`. `by` says who cancels it, for its events.
        """
        error = error or ErrorInfo(code="cancelled", message="the run was cancelled")
        call, author = (run_id, status, to_json({"error": error.model_dump()})), to_json(dict(by or {}))
        try:
            answer = self._caller.call("ledger/cancel", *call, "", author)
        except ResponseError:  # what an earlier call left of the run cannot be done
            answer = self._caller.call("ledger/cancel", *call, "1", author)
        if answer is None:
            raise UnknownRunError.of(run_id)
        return cast(RunStatus, answer)

    def append_event(
        self, run_id: str, kind: str, *, step_id: str = "", detail: Mapping[str, JsonValue] | None = None
    ) -> bool:
        """Append an event to a run; return False if the run is over."""
        appended = bool(self._caller.call("ledger/append_event", run_id, kind, step_id, to_json(dict(detail or {}))))
        fault_points.at("event-appended")
        return appended

    def append_events(self, kind: str, events: Iterable[tuple[str, str, Mapping[str, JsonValue]]]) -> None:
        """Append an event to each of several open runs: (run, step, detail)."""
        self._caller.call_runs(
            "ledger/append_event",
            [(run_id, kind, step_id, to_json(dict(detail))) for run_id, step_id, detail in events],
        )
        fault_points.at("event-appended")

    def append_log(self, run_id: str, lines: Sequence[str], *, most: int, most_bytes: int) -> None:
        """Append lines to the log of a run, and drop the oldest beyond these bounds; nothing happens if the run is gone."""
        self._caller.call("ledger/append_log", run_id, most, most_bytes, *lines)

    def cancel_all(self, run_ids: Sequence[str], *, by: Mapping[str, JsonValue] | None = None) -> None:
        """Cancel runs; unknown and ended ones do not change. `by` says who cancels them."""
        error = to_json({"error": ErrorInfo(code="cancelled", message="the run was cancelled").model_dump()})
        author = to_json(dict(by or {}))
        try:
            self._caller.call_runs("ledger/cancel", [(run_id, "cancelled", error, "", author) for run_id in run_ids])
        except ResponseError:  # of one of them
            for run_id in run_ids:
                with suppress(UnknownRunError):
                    self.cancel(run_id, by=by)


def _offer(
    *, request: str, definitions: str, labels: Mapping[str, str], batch: str = "", **settings: Any
) -> dict[str, JsonValue]:
    """Return an offer with the fields of one run; `settings` as in `offer_of`."""
    offer = offer_of(tenant=labels.get("tenant", ""), **settings)
    fields = cast("dict[str, JsonValue]", offer["fields"])
    fields |= {
        "request": request,
        "definitions": definitions_digest(definitions),
        "labels": to_json(dict(labels)),
        "accepted_by": token_hex(4),
    }
    if batch:
        fields["batch"] = batch
    return offer
