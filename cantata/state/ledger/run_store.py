"""Runs as a whole: accept, fork, cancel, and append to their events and log lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import cast

from cantata import fault_points
from cantata.errors import CantataError, UnknownRunError
from cantata.models.graph import START, Step
from cantata.models.values import ErrorInfo, JsonValue
from cantata.models.wire import RunStatus
from cantata.state.ledger.encoding import shown_status, step_text, to_json
from cantata.state.ledger.intervals import RESEND_MS, RETENTION_S
from cantata.state.ledger.records import Accepted, RunSession
from cantata.state.ledger.script_caller import ScriptCaller
from cantata.state.redis.keys import definitions_digest, definitions_key, run_key, shard_of


def offer_of(
    *, kind: str, tenant: str, timeout_s: float, timeout_by: str, max_attempts: int, max_steps: int, retention_s: float, queue: str
) -> dict[str, JsonValue]:
    """Return an offer for `accept` of `accepting.lua`, without the fields that name a run's request, definitions and labels."""
    fields: dict[str, JsonValue] = {
        "kind": kind, "tenant": tenant, "timeout_ms": int(timeout_s * 1000), "timeout_by": timeout_by, "max_attempts": max_attempts,
        "max_steps": max_steps, "retention_ms": int(retention_s * 1000),
    }  # fmt: skip
    start = step_text(Step(id=START, kind="run.start", queue=queue, decides=True, expands=True))
    return {"step": START, "spec": start, "resend_ms": RESEND_MS, "fields": fields}


class RunStore:
    """The runs of a ledger."""

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller
        self._redis = caller.redis

    def accept(
        self, run_id: str, *, kind: str, request: str, definitions: str, timeout_s: float, max_attempts: int, max_steps: int,
        queue: str = "coordinator", labels: Mapping[str, str] | None = None, retention_s: float = RETENTION_S,
        session: RunSession | None = None, timeout_by: str = "",
    ) -> Accepted:  # fmt: skip
        """Accept a run, whose first step waits on `queue`. Repeated with the same id it changes nothing.

        The label `tenant` names its tenant. The runs of a session lie in the session's shard and run one after the other.

        Args:
            timeout_by: The setting that `timeout_s` comes from, for messages.
        """
        labels = labels or {}
        offer = offer_of(
            kind=kind, tenant=labels.get("tenant", ""), timeout_s=timeout_s, timeout_by=timeout_by, max_attempts=max_attempts,
            max_steps=max_steps, retention_s=retention_s, queue=queue,
        )  # fmt: skip
        fields = cast("dict[str, JsonValue]", offer["fields"])
        fields |= {
            "request": request, "definitions": definitions_digest(definitions), "labels": to_json(dict(labels)), "accepted_by": token_hex(4)
        }  # fmt: skip
        if session is not None:
            offer["max_waiting"] = session.max_waiting
            fields |= {"session": session.name, "session_keep_ms": int(session.keep_s * 1000), "session_entries": session.max_entries}
        result, priority = self._caller.call("ledger/accept", run_id, to_json(offer))
        if result == "undefined":
            result, priority = self._caller.call("ledger/accept", run_id, to_json({**offer, "definitions_text": definitions}))
        return Accepted(result, int(priority))

    def definitions(self, run_id: str, digest: str) -> str:
        """Return the definitions that a run started with, as JSON text."""
        text = self._caller.with_retries(lambda: self._redis.hget(definitions_key(self._redis, shard_of(run_id), digest), "text"))
        if text is None:
            raise CantataError(f"the definitions {digest[:12]} of run {run_id!r} have expired")
        return str(text)

    def request_of(self, run_id: str) -> tuple[str, str, str, Mapping[str, str]]:
        """Return a run's kind, request (JSON text), the digest of its definitions, and its labels."""
        names = ["kind", "request", "definitions", "labels"]
        fields = self._caller.with_retries(lambda: self._redis.hmget(run_key(self._redis, run_id), names))
        if fields[0] is None:
            raise UnknownRunError.of(run_id)
        return str(fields[0]), str(fields[1]), str(fields[2]), json.loads(fields[3] or "{}")

    def status(self, run_id: str) -> RunStatus:
        """Return the status of a run. Raises UnknownRunError."""
        names = ["status", "cancelling"]
        found = cast("list[str | None]", self._caller.with_retries(lambda: self._redis.hmget(run_key(self._redis, run_id), names)))
        if found[0] is None:
            raise UnknownRunError.of(run_id)
        return shown_status(dict(zip(names, found, strict=True)))

    def is_known(self, run_id: str) -> bool:
        """Return whether a run was accepted and is kept."""
        return bool(self._caller.with_retries(lambda: self._redis.exists(run_key(self._redis, run_id))))

    def cancel(self, run_id: str, *, status: RunStatus = "cancelled", error: ErrorInfo | None = None) -> RunStatus:
        """End a run; workers stop its steps within a renewal. Return its status after that. Raises UnknownRunError.

        If workflows in Python clean up first, that is `cancelling`.
        """
        error = error or ErrorInfo(code="cancelled", message="the run was cancelled")
        answer = self._caller.call("ledger/cancel", run_id, status, to_json({"error": error.model_dump()}))
        if answer is None:
            raise UnknownRunError.of(run_id)
        return cast(RunStatus, answer)

    def append_event(self, run_id: str, kind: str, *, step_id: str = "", detail: Mapping[str, JsonValue] | None = None) -> bool:
        """Append an event to a run; return False if the run is over."""
        appended = bool(self._caller.call("ledger/append_event", run_id, kind, step_id, to_json(dict(detail or {}))))
        fault_points.at("event-appended")
        return appended

    def append_events(self, kind: str, events: Iterable[tuple[str, str, Mapping[str, JsonValue]]]) -> None:
        """Append an event to each of several open runs: (run, step, detail)."""
        self._caller.call_runs(
            "ledger/append_event", [(run_id, kind, step_id, to_json(dict(detail))) for run_id, step_id, detail in events]
        )
        fault_points.at("event-appended")

    def append_log(self, run_id: str, lines: Sequence[str], *, most: int, most_bytes: int) -> None:
        """Append lines to the log of a run, and drop the oldest beyond these bounds; nothing happens if the run is gone."""
        self._caller.call("ledger/append_log", run_id, most, most_bytes, *lines)
