"""Steps of runs: begin, commit, release and signal them."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, cast

import structlog
from pydantic import ValidationError

from cantata.errors import ConfigError, StoredDataError
from cantata.flows.graph import Outcome
from cantata.ledger import refused_steps
from cantata.ledger.encoding import (
    fragment_of,
    own_spec_of,
    ready_of,
    ready_of_runs,
    spec_of,
    storable,
    to_json,
    usage_of,
    whole_spec_of,
)
from cantata.ledger.intervals import RESEND_MS
from cantata.ledger.records import Ahead, AttemptRecord, Begun, Committed, Overdue, Ready, Refusal, Woken, owner_of
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import run_key, shard_key, shard_of
from cantata.ledger.redis.pieces import scan
from cantata.ledger.scripts import ScriptCaller, named
from cantata.operation import fault_points
from cantata.values import JsonValue, Usage

EARLY_SIGNALS = 20_000  # that one run keeps for steps which do not wait yet
EARLY_SIGNAL_BYTES = 16_000_000  # of them
HEARTBEAT_KEPT_S = 60.0  # past its time limit, the last heartbeat of a task
BLOB_BYTES = 32_768  # larger outputs are stored once by content and referred to

SignalCheck = Callable[[str, Mapping[str, JsonValue] | None, Mapping[str, JsonValue]], str | None]
"""Checks a signal: it gets the step's id, parameters (None if the run has no such step so far) and info. It returns why the signal is
refused, "" if it is not, and None if it cannot tell."""

log = structlog.get_logger(__name__)


class StepStore:
    """The steps of a ledger's runs."""

    def __init__(self, caller: ScriptCaller, *, lease_s: float) -> None:
        self._caller = caller
        self._lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        self._calls = itertools.count(1)

    def may_have_expired(self, begun: Begun) -> bool:
        """Return whether the lease of a step that was never renewed may have run out, since this process was frozen."""
        return time.monotonic() - begun.asked_at > self._lease_s

    def begin(self, run_id: str, step_id: str, owner: str) -> Begun | Refusal:
        """Lease a step to `owner`, or return why not."""
        begun = self.begin_together(run_id, [step_id], owner)
        return begun if isinstance(begun, str) else begun[0]

    def begin_together(self, run_id: str, step_ids: Sequence[str], owner: str) -> list[Begun] | Refusal:
        """Lease the first of some steps, or return why not; if it is pure, those of the others too that are so and were never begun."""
        owner, asked_at = self._owner_of_call(owner), time.monotonic()
        answer = self._caller.call("ledger/begin", run_id, step_ids[0], owner, self._lease_ms, *step_ids[1:])
        if answer[0] != "begun":
            return cast(Refusal, answer[0])
        return [begun for each in answer[1:] if (begun := self._begun(run_id, owner, asked_at, each))] or "refused"

    def commit(
        self,
        begun: Begun,
        outcome: Outcome,
        *,
        output: str,
        info: Mapping[str, JsonValue],
        ahead: Ahead | None = None,
        next_owner: str = "",
        before: Sequence[tuple[Begun, AttemptRecord]] = (),
    ) -> Committed:
        """Record the outcome of an attempt. The first outcome of a step counts; that of a lost attempt is refused as 'stale'.

        Args:
            output: The outcome's output, as JSON text.
            ahead: The steps that this worker may begin in the same call.
            next_owner: The owner of those; that of `begun` if it is empty.
            before: Pure steps that ended before this one, to be recorded in the same call.
        """
        own, asked_at = self._owner_of_call(next_owner or owner_of(begun.owner)), time.monotonic()
        envelope, outputs, following_owner = (
            self._envelope(begun, AttemptRecord(outcome, output, info), ahead),
            [output],
            own,
        )
        envelope |= {"next_owner": own, "resend_ms": RESEND_MS, "lease_ms": self._lease_ms}
        if ahead and ahead.advance:
            advance, record = ahead.advance
            following_owner = self._owner_of_call(owner_of(own))
            envelope["advance"] = {**self._envelope(advance, record, None), "owner": own, "next_owner": following_owner}
            outputs.append(record.output)
        if before:
            envelope["before"] = [self._envelope(each, record, None) for each, record in before]
            outputs = [output, "", *(record.output for _, record in before)]
        reply = named(self._caller.call("ledger/commit", begun.run_id, storable(to_json(envelope)), *outputs))
        sends, following, run_status = reply.get("sends", []), reply.get("following", []), reply.get("run_status", "")
        has_posts, has_advanced = "has_posts" in reply, "has_advanced" in reply
        if "is_left" in reply:
            rest = self._caller.finish(begun.run_id, resend_ms=RESEND_MS)
            sends, run_status, following = [*sends, *rest.sends], rest.status, [*following, *rest.following]
            has_posts |= rest.has_posts
        owner = following_owner if has_advanced else own
        return Committed(
            reply["result"],
            ready_of(sends),
            run_status=run_status,
            next_runs=ready_of_runs(following),
            has_advanced=has_advanced,
            begun=self._begun(begun.run_id, owner, asked_at, reply["begun"]) if "begun" in reply else None,
            results_before=tuple(reply["results_before"]),
            has_posts=has_posts,
        )

    def _envelope(self, begun: Begun, record: AttemptRecord, ahead: Ahead | None) -> dict[str, JsonValue]:
        """Return an outcome as `commit.lua` takes it, without its output."""
        outcome, output = record.outcome, record.output
        envelope: dict[str, JsonValue] = {
            "step": begun.step_id, "attempt": begun.attempt, "owner": begun.owner, "status": outcome.status,
            "info": to_json(dict(record.info)),
        }  # fmt: skip
        if outcome.takes != ("done",):
            envelope["takes"] = list(outcome.takes)
        if outcome.retry_in_s:
            envelope["retry_ms"] = int(outcome.retry_in_s * 1000)
        if (
            len(output.encode()) > BLOB_BYTES
        ):  # encoded twice: a copy kept during the call takes half as long again, at 250 kB
            envelope["blob"] = sha256(output.encode()).hexdigest()
        if code := record.info.get("code"):
            envelope["code"] = code
        if outcome.usage:
            envelope["usage"] = usage_of(outcome.usage)
        if outcome.fragment:
            envelope["fragment"] = fragment_of(outcome.fragment)
        if outcome.warnings:
            envelope["warnings"] = list(outcome.warnings)
        if _is_plain(begun, envelope):
            envelope["plain"] = True
        if begun.spec.window:
            envelope["window"] = begun.spec.window
        if ahead:
            envelope["ahead"] = {
                "queue": ahead.queue,
                "cheap": ahead.cheap,
                "rounds": ahead.rounds,
                "tool": ahead.tool or None,
            }
            if ahead.next_step:
                envelope["next_step"] = ahead.next_step
        return envelope

    def dispatched(self, run_id: str, step_id: str, attempt: int) -> tuple[Begun, float] | None:
        """Return a step whose task is under way, and the seconds since it was dispatched; None if this attempt of it is over."""
        asked_at = time.monotonic()
        found = named(self._caller.call("ledger/dispatched", run_id, step_id, attempt))
        begun = self._begun(run_id, found.get("owner", ""), asked_at, found["begun"]) if found else None
        return (begun, found["since_ms"] / 1000) if begun else None

    def keep_revoked(self, names: Iterable[str]) -> None:
        """Put revocations (`run|attempt|step`) back, for the next sweep."""
        redis = self._caller.redis
        for name in names:
            redis.rpush(f"{shard_key(redis, shard_of(name.partition('|')[0]))}:revoked", name)

    def record_heartbeat(self, begun: Begun) -> None:
        """Record that the task of a dispatched step is alive."""
        keep_ms = int(((begun.spec.timeout_s or 0.0) + HEARTBEAT_KEPT_S) * 1000)
        self._caller.with_retries(
            lambda: self._caller.redis.set(self._heartbeat_key(begun), f"{clock.now():.3f}", px=keep_ms)
        )

    def silent_s(self, begun: Begun) -> float | None:
        """Return the seconds since the last heartbeat of a step's task; None if there was none."""
        found = self._caller.with_retries(lambda: self._caller.redis.get(self._heartbeat_key(begun)))
        return None if found is None else max(0.0, clock.now() - float(found))

    def _heartbeat_key(self, begun: Begun) -> str:
        return f"{run_key(self._caller.redis, begun.run_id)}:beat:{begun.attempt}:{begun.step_id}"

    def still_waiting(self, overdue: Iterable[Overdue]) -> list[tuple[str, Ready]]:
        """Return those of some steps that are still not begun, to be sent again."""
        steps = list(overdue)
        specs = self._caller.call_runs("ledger/unbegun", [(step.run_id, step.step_id) for step in steps])
        return [
            (step.run_id, Ready(step.step_id, spec_of(text), step.priority, has_waited=True))
            for step, text in zip(steps, specs, strict=True)
            if text
        ]

    def release(self, begun: Begun) -> tuple[Ready, ...]:
        """Give up the lease of a step without counting the attempt, and return the step if the lease was held. The next sweep sends it."""
        return ready_of(
            self._caller.call("ledger/release", begun.run_id, begun.step_id, begun.attempt, begun.owner, 0, "")
        )

    def refuse(
        self, run_id: str, step_id: str, attempt: int, owner: str, why: str, *, resend_ms: int = RESEND_MS
    ) -> None:
        """Give up the lease of a step that this worker cannot execute; it is sent again later. Events and `submit status` show why."""
        log.warning("step_refused", run=run_id, step=step_id, worker=owner.partition("~")[0], reason=why)
        self._caller.call("ledger/release", run_id, step_id, attempt, owner, resend_ms, to_json({"message": why}))
        self._caller.with_retries(lambda: refused_steps.record(self._caller.redis, run_id, step_id, why))

    def signal(
        self,
        run_id: str,
        step_id: str,
        value: JsonValue,
        *,
        max_kept: int = EARLY_SIGNALS,
        by: str = "",
        author: Mapping[str, JsonValue] | None = None,
        groups: Collection[str] | None = None,
        check: SignalCheck | None = None,
    ) -> tuple[str, tuple[Ready, ...]]:
        """Signal a waiting step: return 'taken', 'kept', 'over', 'closed', 'unknown', 'unclear' or 'full', and the steps to send.

        A name that no step answers to is searched for in pieces, as the end of ids and names, again if the run gets new steps meanwhile.

        Args:
            max_kept: How many signals the run keeps at most for steps that do not wait yet.
            by: The author of the value.
            author: The fields by which the event names who sent it.
            groups: Those for which the author may answer; None for all.
            check: Called before a step with conditions, or an unknown one, gets the value; a refusal is returned instead of 'taken'.
        """
        key, text = run_key(self._caller.redis, run_id), to_json(value)
        call: dict[str, JsonValue] = {
            "step": step_id,
            "key": token_hex(8),
            "resend_ms": self._caller.resend_ms,
            "max_kept": max_kept,
            "max_bytes": EARLY_SIGNAL_BYTES,
            "by": " ".join(by.split()),
            **({"author": dict(author)} if author else {}),
            **({} if groups is None else {"groups": [*groups]}),
        }
        word, rest, *more = self._caller.call("ledger/signal", run_id, to_json(call), text)
        while word in ("search", "check"):
            if word == "check":
                found_id, spec, info = rest
                refusal = check(found_id, _params_of(run_id, found_id, spec), json.loads(info)) if check else None
                if refusal:
                    return refusal, ()
                call |= {"checked": found_id, "met": refusal is not None}
                word, rest, *more = self._caller.call("ledger/signal", run_id, to_json(call), text)
                continue
            pattern = "*/" + re.sub(r"([*?\[\]\\])", r"\\\1", step_id)
            parts = (
                scan(self._caller.redis, self._caller.with_retries, f"{key}{part}", match=pattern)
                for part in (":state", ":names")
            )
            found = {name for part in parts for name in part}
            call |= {"count": rest, "found": [*sorted(found)]}
            word, rest, *more = self._caller.call("ledger/signal", run_id, to_json(call), text)
        is_unfinished, priority = more or (0, 0)
        if is_unfinished:
            rest = [*rest, *self._caller.finish(run_id, resend_ms=self._caller.resend_ms).sends]
        return word, ready_of(rest, int(priority))

    def record_usage(self, begun: Begun, usage: Usage) -> None:
        """Record the usage of an attempt without an outcome, since its step was stopped; it counts once."""
        self._caller.call("ledger/record_usage", begun.run_id, begun.step_id, begun.attempt, to_json(usage_of(usage)))

    def append_delta(self, begun: Begun, text: str) -> bool:
        """Append a piece of a model's reply to the run's events; return False if this attempt no longer counts."""
        detail = to_json({"text": text})
        appended = self._caller.call(
            "ledger/append_event", begun.run_id, "delta", begun.step_id, detail, begun.attempt, begun.owner
        )
        fault_points.at("event-appended")
        return bool(appended)

    def wake_all(self, tickets: Sequence[str]) -> list[Woken]:
        """Start the next attempt of waiting steps (`run|step`) now; one whose record cannot be read costs no other."""
        steps = [
            (shard_of(run_id), (run_id, step_id, RESEND_MS))
            for run_id, _, step_id in (t.partition("|") for t in tickets)
        ]
        return [_woken(reply) for reply in self._caller.call_all("ledger/wake", steps, on_error=lambda error: [error])]

    def _owner_of_call(self, owner: str) -> str:
        """Return the owner with a number of the call, so that a lease tells which call it is of."""
        return f"{owner}~{next(self._calls)}"

    def _begun(self, run_id: str, owner: str, asked_at: float, reply: Sequence[Any]) -> Begun | None:
        """Return the step that was begun; None if this worker cannot read its spec, after it was refused."""
        found = named(reply)
        step_id, attempt, spec, flat = found["step"], int(found["attempt"]), found["spec"], found["inputs"]
        own, inputs, given, fault = None, {}, None, ""
        try:
            own = own_spec_of(spec)
            inputs = {flat[i]: json.loads(flat[i + 1]) for i in range(0, len(flat), 2)}
            given = json.loads(found["given"]) if "given" in found else None
        except ValidationError as error:
            self.refuse(run_id, step_id, attempt, owner, refused_steps.cannot_read(error))
            return None
        except StoredDataError as error:
            fault = f"this step cannot be executed: {error}"
        except (ValueError, RecursionError) as error:
            why = "is nested too deeply" if isinstance(error, RecursionError) else f"is not JSON: {error}"
            fault = f"this step cannot be executed: a value that it gets {why}"
        return Begun(
            run_id,
            step_id,
            attempt,
            owner,
            own or spec_of(spec),
            given,
            int(found["failures"]),
            inputs,
            found["definitions"],
            tenant=found.get("tenant") or "",
            run_kind=found.get("run_kind") or "",
            session=found.get("session") or "",
            priority=int(found["priority"]),
            asked_at=asked_at,
            waited_s=found["waited_ms"] / 1000 if "waited_ms" in found else None,
            unreadable=fault,
        )


def _params_of(run_id: str, step_id: str, spec: str) -> Mapping[str, JsonValue] | None:
    """Return the parameters of a step that gets a signal, None without a spec. Raises ConfigError if its conditions cannot be read."""
    try:
        return whole_spec_of(spec).params if spec else None
    except (ValidationError, StoredDataError) as error:
        message = (
            f"step {step_id!r} of run {run_id} cannot be read, so it is not known who may answer it; cancel the run"
        )
        raise ConfigError(message, source="signal") from error


def _woken(reply: Sequence[Any]) -> Woken:
    if isinstance(reply[0], Exception):
        return Woken("unreadable", error=reply[0])
    try:
        return Woken(reply[0], ready_of(reply[1], int(reply[2])))
    except Exception as error:  # noqa: BLE001  # whatever a decoder raises for the spec of this step, others are woken by the same call
        return Woken("unreadable", error=error)


def _is_plain(begun: Begun, envelope: Mapping[str, JsonValue]) -> bool:
    """Return whether only the out-edges of a step may follow from its outcome."""
    return (
        envelope["status"] == "done"
        and not envelope.keys() & {"takes", "blob", "fragment", "warnings"}
        and begun.spec.kind != "workflow.advance"
    )
