"""Keeps runs in Redis.

Each promise is one Lua script: a run is accepted once, a step begins only if the ledger says so, an outcome is recorded once.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, TypeVar, cast

import structlog
from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from cantata import fault_points
from cantata.errors import CantataError, ConfigError, UnavailableError, UnknownRunError
from cantata.models.graph import START, STEP_OVER, Outcome, Step
from cantata.models.values import ErrorInfo, JsonValue, Usage
from cantata.models.wire import RUN_OVER, RunStatus
from cantata.state.fleet import refused_steps
from cantata.state.ledger.encoding import (
    fragment_text,
    own_spec_of,
    ready_of,
    ready_of_runs,
    run_record,
    spec_of,
    states_in,
    step_record,
    step_text,
    storable,
    swept_of,
    to_json,
    unknown_fields,
    usage_text,
)
from cantata.state.ledger.records import (
    Accepted,
    Ahead,
    Begun,
    Committed,
    Overdue,
    Ready,
    Refusal,
    RunRecord,
    SessionSettings,
    StepRecord,
    Swept,
    owner_of,
)
from cantata.state.redis.cluster import Cluster
from cantata.state.redis.keys import RUN_PARTS, SHARDS, definitions_digest, definitions_key, run_key, shard_key, shard_of
from cantata.state.redis.lua_scripts import Scripts
from cantata.state.redis.pieces import LARGE_PIECE, PIECE, fields, scan
from cantata.state.redis.redis_errors import Unconfirmed, is_transient, reason

LEASE_S = 5.0  # how long a frozen or lost worker keeps a step from others
RENEW_S = 1.0  # five chances to renew before a lease runs out
SWEEP_S = 0.5  # how soon after its lease a step is sent again
RESEND_S = 4.0  # how long a step may be sent and not begun before someone looks after its message
RETENTION_S = 86_400.0  # how long a finished run can be read
CONFIRM_MS = 1000  # how long replicas have to confirm, before the call is told again
CONFIRMED = frozenset({"accept", "cancel", "commit", "fork", "signal"})
"""What replicas confirm, if so many are named: what is promised to somebody, or need not be done again."""
CALLS_AT_ONCE = 200  # in one round trip, for which a server turns to nobody else
EARLY_SIGNALS = 20_000  # that one run keeps for steps which do not wait yet
EARLY_SIGNAL_BYTES = 16_000_000  # of them
BLOB_BYTES = 32_768  # larger outputs are stored once by content and referred to

log = structlog.get_logger(__name__)

Reply = TypeVar("Reply")

_scripts, _reading = Scripts(), Scripts("reading")


class Ledger:
    """Runs in Redis. Safe to share between threads; every call may be told twice."""

    def __init__(self, redis: Redis, *, patience_s: float = 30.0, lease_s: float = LEASE_S, replicas: int = 0) -> None:
        """What is told counts when so many replicas have it too. Raises ConfigError where they cannot be asked."""
        if replicas and isinstance(redis, Cluster):
            raise ConfigError("CANTATA_WAIT_REPLICAS is not for a Redis Cluster: its nodes are not waited for; unset it")
        self.redis = redis
        self._patience_s = patience_s
        self._lease_s = lease_s
        self._lease_ms = str(int(lease_s * 1000))
        self._resend_ms = str(int(RESEND_S * 1000))
        self._calls = itertools.count(1)
        self._replicas = replicas

    # --- runs -------------------------------------------------------------------------------------------------------

    def accept(
        self, run_id: str, *, kind: str, request: str, definitions: str, timeout_s: float, max_attempts: int, max_steps: int,
        queue: str = "coordinator", labels: Mapping[str, str] | None = None, retention_s: float = RETENTION_S, session: SessionSettings | None = None,
        timeout_by: str = "",
    ) -> Accepted:  # fmt: skip
        """Take a run in; its first step waits on `queue`. Told again with the same id it changes nothing.

        `timeout_by` is the setting that `timeout_s` comes from, for people.

        The label `tenant` says whose run it is. The runs of a session, which lie in its shard, have their turns one after the other.
        """
        labels = labels or {}
        digest, call = definitions_digest(definitions), token_hex(4)
        fields = {
            "kind": kind, "request": request, "max_attempts": max_attempts, "max_steps": max_steps,
            "retention_ms": int(retention_s * 1000), "labels": to_json(dict(labels)), "timeout_by": timeout_by,
        }  # fmt: skip
        queueing: tuple[str | int, ...] = ("", 0, 0)
        if session is not None:
            keep_session_ms = int(session.keep_s * 1000)
            queueing = (session.name, session.max_waiting, keep_session_ms)
            fields |= {"session": session.name, "session_keep_ms": keep_session_ms, "session_entries": session.max_entries}
        flat = [str(item) for pair in fields.items() for item in pair]
        start = step_text(Step(id=START, kind="run.start", queue=queue, decides=True, expands=True))
        for text in ("", definitions):
            fixed = (run_id, START, start, self._resend_ms, int(timeout_s * 1000), digest, text, labels.get("tenant", ""), call)
            word, priority = self._call("accept", run_id, *fixed, *queueing, *flat)
            if word != "undefined":
                break
        return Accepted(word, int(priority))

    def stage(self, run_id: str, source: str, place: str, *words: str) -> Sequence[Any]:
        """Lay out a piece of what a fork takes over; see `staging`."""
        return self._call("stage", run_id, source, place, *words)

    def fork(self, run_id: str, source: str, place: str, *, request: str, labels: str, plan: str) -> tuple[str, int, tuple[Ready, ...]]:
        """Make a run of another in its shard: 'new' or why not (`lua/fork.lua`), its priority, what to send."""
        args = (run_id, source, place, token_hex(4), request, labels, self._resend_ms, plan)
        word, priority, sends = self._call("fork", run_id, *args)
        return word, int(priority), ready_of(sends)

    def definitions(self, run_id: str, digest: str) -> str:
        """The definitions a run started with, as JSON text."""
        text = self.with_retries(lambda: self.redis.hget(definitions_key(self.redis, shard_of(run_id), digest), "text"))
        if text is None:
            raise CantataError(f"the definitions {digest[:12]} of run {run_id!r} have expired")
        return str(text)

    def request_of(self, run_id: str) -> tuple[str, str, str, Mapping[str, str]]:
        """A run's kind, request (JSON text), the digest of its definitions, and its labels."""
        fields = self.with_retries(lambda: self.redis.hmget(run_key(self.redis, run_id), ["kind", "request", "definitions", "labels"]))
        if fields[0] is None:
            raise UnknownRunError.of(run_id)
        return str(fields[0]), str(fields[1]), str(fields[2]), json.loads(fields[3] or "{}")

    def status(self, run_id: str) -> RunStatus:
        """How a run stands. Raises UnknownRunError."""
        status = self.with_retries(lambda: self.redis.hget(run_key(self.redis, run_id), "status"))
        if status is None:
            raise UnknownRunError.of(run_id)
        return cast(RunStatus, status)

    def step_ids(self, run_id: str, limit: int) -> list[str]:
        """Return the ids of at most `limit` steps of a run, in no order."""
        return list(scan(self.redis, self.with_retries, f"{run_key(self.redis, run_id)}:state", limit=limit))[:limit]

    def is_known(self, run_id: str) -> bool:
        """Whether a run was accepted and is kept."""
        return bool(self.with_retries(lambda: self.redis.exists(run_key(self.redis, run_id))))

    def is_over(self, run_id: str) -> bool:
        """Whether a run has ended, or is not known any more."""
        return self.with_retries(lambda: self.redis.hget(run_key(self.redis, run_id), "status")) not in ("accepted", "running")

    def cancel(self, run_id: str, *, status: RunStatus = "cancelled", error: ErrorInfo | None = None) -> RunStatus:
        """End a run; workers stop what they do for it within a renewal. Answers its status after that. Raises UnknownRunError."""
        error = error or ErrorInfo(code="cancelled", message="the run was cancelled")
        answer = self._call("cancel", run_id, run_id, status, to_json({"error": error.model_dump()}))
        if answer is None:
            raise UnknownRunError.of(run_id)
        return cast(RunStatus, answer)

    def signal(self, run_id: str, step_id: str, value: JsonValue, *, max_kept: int = EARLY_SIGNALS) -> tuple[str, tuple[Ready, ...]]:
        """Give a waiting step its value: ('taken' | 'kept' | 'over' | 'closed' | 'unknown' | 'unclear' | 'full', what to send).

        A name that no step answers to is looked for in pieces, as the end of ids and names; anew if the run gets new steps meanwhile.
        A run keeps at most `max_kept` for steps that do not wait yet.
        """
        key, text = run_key(self.redis, run_id), to_json(value)
        bounds = (self._resend_ms, max_kept, EARLY_SIGNAL_BYTES)
        word, rest = self._call("signal", run_id, run_id, step_id, text, *bounds)
        while word == "search":
            pattern = "*/" + re.sub(r"([*?\[\]\\])", r"\\\1", step_id)
            found = {name for part in (":state", ":names") for name in scan(self.redis, self.with_retries, f"{key}{part}", match=pattern)}
            word, rest = self._call("signal", run_id, run_id, step_id, text, *bounds, rest, *sorted(found))
        return word, ready_of(rest)

    # --- steps ------------------------------------------------------------------------------------------------------

    def is_old(self, begun: Begun) -> bool:
        """Whether a step was begun so long ago, and not renewed since, that its lease may have run out: the process was frozen."""
        return time.monotonic() - begun.asked_at > self._lease_s

    def begin(self, run_id: str, step_id: str, owner: str) -> Begun | Refusal:
        """Lease a step to `owner`, or say why not."""
        owner, asked_at = self._own(owner), time.monotonic()
        answer = self._call("begin", run_id, run_id, step_id, owner, self._lease_ms)
        if answer[0] != "begun":
            return cast(Refusal, answer[0])
        return self._begun(run_id, owner, asked_at, answer[1]) or "refused"

    def commit(
        self, begun: Begun, outcome: Outcome, *, output: str, info: Mapping[str, JsonValue], ahead: Ahead | None = None
    ) -> Committed:
        """Record how an attempt ended. The first outcome of a step counts; one of a lost attempt is refused as 'stale'.

        `output` is the outcome's output as JSON text. With `ahead`, a step this worker may begin at once is begun in the same call.
        """
        blob = ""
        next_owner, asked_at = self._own(owner_of(begun.owner)), time.monotonic()
        if len(output.encode()) > BLOB_BYTES:
            blob, output = output, f"@{sha256(output.encode()).hexdigest()}"
        word, sends, next_begun, run_status, following = self._call(
            "commit", begun.run_id, begun.run_id, begun.step_id, begun.attempt, begun.owner, outcome.status, output, blob,
            storable(to_json(dict(info))), ",".join(outcome.takes), usage_text(outcome.usage), int(outcome.retry_in_s * 1000),
            self._resend_ms,
            storable(fragment_text(outcome.fragment)) if outcome.fragment else "",
            ahead.queue if ahead else "", ahead.cheap if ahead else "", self._lease_ms, ahead.next_step if ahead else "",
            to_json(list(outcome.warnings)) if outcome.warnings else "", next_owner, "\n".join(cast("list[str]", info.get("code") or ())),
        )  # fmt: skip
        next_step = self._begun(begun.run_id, next_owner, asked_at, next_begun) if next_begun else None
        return Committed(word, ready_of(sends), next_step, run_status, ready_of_runs(following))

    def still_waiting(self, overdue: Iterable[Overdue]) -> list[tuple[str, Ready]]:
        """Return those of some steps that nobody has begun yet, to be sent again."""
        steps = list(overdue)
        specs = self._call_each("waiting", [(step.run_id, step.step_id) for step in steps])
        return [
            (step.run_id, Ready(step.step_id, spec_of(text), step.priority, has_waited=True))
            for step, text in zip(steps, specs, strict=True) if text
        ]  # fmt: skip

    def renew(self, leases: Iterable[str]) -> set[str]:
        """Keep leases alive; answers those that are lost, because a sweep or the end of the run took them."""
        by_shard: dict[int, list[str]] = {}
        for lease in leases:
            by_shard.setdefault(shard_of(lease.split("|", 1)[0]), []).append(lease)
        lost: set[str] = set()
        failure: RedisError | None = None
        for shards in self.nodes().values():
            calls = [(shard, (self._lease_ms, *by_shard[shard])) for shard in shards if shard in by_shard]
            try:  # nobody is waited for here: the other nodes' leases run meanwhile
                lost.update(lease for leases in self._call_all_once("renew", calls) for lease in leases)
            except RedisError as error:
                if not is_transient(error):
                    raise
                failure = error
        if failure is not None:
            raise UnavailableError(reason(failure)) from failure
        return lost

    def nodes(self) -> dict[str, list[int]]:
        """The shards of each node; of a single Redis all under ""."""
        if not isinstance(self.redis, Cluster):
            return {"": list(range(SHARDS))}
        shards: dict[str, list[int]] = {}
        for shard in range(SHARDS):
            shards.setdefault(self.redis.node_of(shard_key(self.redis, shard)), []).append(shard)
        return shards

    def release(self, begun: Begun) -> tuple[Ready, ...]:
        """Hand a step back undone, uncounted; answers it, if it was held. The next sweep sends it."""
        return ready_of(self._call("release", begun.run_id, begun.run_id, begun.step_id, begun.attempt, begun.owner, 0, ""))

    def refuse(self, run_id: str, step_id: str, attempt: int, owner: str, why: str) -> None:
        """Hand back a step that this worker cannot do; it is sent again after a while. The run's events and `submit status` say why."""
        log.warning("step_refused", run=run_id, step=step_id, worker=owner.partition("~")[0], reason=why)
        self._call("release", run_id, run_id, step_id, attempt, owner, self._resend_ms, to_json({"message": why}))
        self.with_retries(lambda: refused_steps.note(self.redis, run_id, step_id, why))

    def leases(self, shards: Iterable[int] = range(SHARDS)) -> list[str]:
        """The names of all leases in some shards."""
        return [lease for _, leases in self._look("leases", list(shards)) for lease in leases]

    def expire(self, leases: Iterable[str]) -> None:
        """Let leases run out now, because their owner is known to be dead."""

        def call() -> None:
            with self.redis.pipeline(transaction=False) as pipe:
                for lease in known:
                    pipe.zadd(f"{shard_key(self.redis, shard_of(lease.split('|', 1)[0]))}:leases", {lease: 0.0}, xx=True)
                pipe.execute()

        known = list(leases)
        self.with_retries(call)

    def sweep(self, shard: int, *, most: int = 200) -> Swept:
        """Recover what one shard lost: leases that ran out, timers that are due, messages that got lost, runs that expired."""
        return swept_of(self._call_shard("sweep", shard, self._resend_ms, str(most)))

    def sweep_all(self, shards: Iterable[int] = range(SHARDS)) -> list[Swept]:
        """Recover what some shards lost, in two round trips; answers those in which something was found, or that could not be swept."""
        due = [part[place - 1] for part, places in self._look("due", list(shards)) for place in places]
        swept = self._call_all("sweep", [(shard, (self._resend_ms, "200")) for shard in due], failed=_not_swept)
        return [swept_of(answer) for answer in swept if any(answer)]

    def used(self, begun: Begun, usage: Usage) -> None:
        """Record what an attempt used that ends without an outcome, since its step was stopped; it counts once."""
        self._call("used", begun.run_id, begun.run_id, begun.step_id, begun.attempt, usage_text(usage))

    def note(self, run_id: str, kind: str, *, step_id: str = "", detail: Mapping[str, JsonValue] | None = None) -> bool:
        """Add an event to a run that is not over."""
        noted = bool(self._call("note", run_id, run_id, kind, step_id, to_json(dict(detail or {}))))
        fault_points.at("event-appended")
        return noted

    def note_each(self, kind: str, notes: Iterable[tuple[str, str, Mapping[str, JsonValue]]]) -> None:
        """Add an event to each of several runs that are not over: (run, step, detail)."""
        self._call_each("note", [(run_id, kind, step_id, to_json(dict(detail))) for run_id, step_id, detail in notes])
        fault_points.at("event-appended")

    def log(self, run_id: str, lines: Sequence[str], *, most: int, most_bytes: int) -> None:
        """Add lines to the log of a run, which holds so many at most; a run that is gone has none."""
        self._call("log", run_id, run_id, most, most_bytes, *lines)

    def claim_trace(self, run_id: str) -> list[str | None]:
        """What the root of a run's trace tells (`lua/trace.lua`): for the first who asks once the run is over; else nothing."""
        return self._call("trace", run_id, run_id)

    def wake_all(self, tickets: Sequence[str]) -> list[tuple[str, tuple[Ready, ...]]]:
        """Let steps of any runs (`run|step`) that wait for their next try have it now: ('woken' | 'over' | 'other', what to send)."""
        steps = [(shard_of(run_id), (run_id, step_id, self._resend_ms)) for run_id, _, step_id in (t.partition("|") for t in tickets)]
        return [(word, ready_of(sends)) for word, sends in self._call_all("wake", steps)]

    def stream(self, begun: Begun, text: str) -> bool:
        """Add a piece of a model's reply to the run's events; False if this attempt counts no more."""
        told = self._call("stream", begun.run_id, begun.run_id, begun.step_id, begun.attempt, begun.owner, to_json({"text": text}))
        fault_points.at("event-appended")
        return bool(told)

    def outputs(self, run_id: str, step_ids: Sequence[str]) -> list[str | None]:
        """Outputs of steps as JSON texts, in order; None where there is none."""
        key, ids = run_key(self.redis, run_id), list(step_ids)
        outs = self._known(key, ":out", ids)
        blobs = self._known(key, ":blobs", sorted({text[1:] for text in outs.values() if text.startswith("@")}), 1)
        return [blobs.get(text[1:]) if text and text[0] == "@" else text for text in map(outs.get, ids)]

    def infos(self, run_id: str, step_ids: Sequence[str]) -> list[dict[str, JsonValue]]:
        """How steps ended, in order; {} where nothing is known yet."""
        infos = self._known(run_key(self.redis, run_id), ":info", list(step_ids))
        return [json.loads(infos.get(step_id, "{}")) for step_id in step_ids]

    def answering(self, run_id: str, names: Sequence[str]) -> list[str]:
        """The steps that answer to names now."""
        found: list[str] = []
        for start in range(0, len(names), PIECE):
            piece = names[start : start + PIECE]
            found += self._answers(run_id, piece)[2][1 : 3 * len(piece) : 3]
        return found

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, run_id: str, names: Sequence[str] | None = None) -> RunRecord:
        """All that is known of a run; with `names`, outputs and infos only of the steps that answer to these and to its terminals.

        It is read in pieces, and goes on meanwhile. One that is over is read as it ended. Of an open one, its status, its terminals and up
        to 500 named steps are of one moment. Other steps may be as they were shortly before, and new ones may be left out. An output
        is only told of a step that is told to be over. Raises UnknownRunError, also if Redis evicted a part of the run.
        """
        key = run_key(self.redis, run_id)
        while True:
            before = self.status(run_id)
            states = self._scan(key, ":state")
            moved: dict[str, str] = {}
            for start in range(0, max(1, len(names or ())), PIECE):
                meta, now_ms, found = self._answers(run_id, (names or ())[start : start + PIECE])
                moved |= dict(zip(found[::3], found[1::3], strict=True))
                states |= {step_id: state for step_id, state in zip(found[1::3], found[2::3], strict=True) if state}
            if meta.get("status") in RUN_OVER and before not in RUN_OVER:
                continue
            states = states_in(meta.get("status"), states)
            wanted = list(states) if names is None else [step_id for step_id in dict.fromkeys(moved.values()) if step_id in states]
            moved = self._scan(key, ":names") if names is None else moved
            texts = self._texts(key, states, wanted)
            if self.is_whole(run_id, meta):
                break
        steps = {step_id: step_record(step_id, packed, *texts) for step_id, packed in states.items()}
        names_now = {name: step_id for name, step_id in moved.items() if name != step_id and step_id in steps}
        return run_record(run_id, meta, steps, names_now, now_ms)

    def records(self, run_id: str, step_ids: Sequence[str]) -> dict[str, StepRecord]:
        """What is known of some steps, by id; unknown ones are left out."""
        key = run_key(self.redis, run_id)
        states = self._known(key, ":state", step_ids, PIECE)
        status = cast("str | None", self.with_retries(lambda: self.redis.hget(key, "status")))
        states = states_in(status, states)
        texts = self._texts(key, states, list(states))
        return {step_id: step_record(step_id, packed, *texts) for step_id, packed in states.items()}

    def is_whole(self, run_id: str, meta: Mapping[str, str]) -> bool:
        """Whether a run of which these fields were read is kept as it was; False if it was over, and is open on a master that came after.

        Raises UnknownRunError for one that is not kept, or is over and has lost a part: its Redis evicts what expires.
        """
        if "status" not in meta:
            raise UnknownRunError.of(run_id)
        if "parts" not in meta:  # it is open
            return True
        key = run_key(self.redis, run_id)

        def fetch() -> tuple[str | None, int]:
            with self.redis.pipeline(transaction=True) as pipe:
                pipe.hget(key, "parts")
                pipe.exists(*(key + part for part in RUN_PARTS))
                return cast("tuple[str | None, int]", tuple(pipe.execute()))

        parts, found = self.with_retries(fetch)
        if parts is None and found:
            return False
        if found != int(meta["parts"]):
            raise UnknownRunError(f"parts of run {run_id!r} were evicted by Redis; set its maxmemory-policy to noeviction")
        return True

    def _answers(self, run_id: str, names: Sequence[str]) -> tuple[dict[str, str], int, list[str]]:
        """At one moment: the fields of a run, the time, and for each name, then for each terminal, name, step and state."""
        key = shard_key(self.redis, shard_of(run_id))
        flat, now_ms, found = self.with_retries(lambda: _reading.call(self.redis, "answers", key, run_id, *names))
        return dict(zip(flat[::2], flat[1::2], strict=True)), int(now_ms), found

    def _look(self, name: str, shards: Sequence[int]) -> list[tuple[Sequence[int], list[Any]]]:
        """What a script finds in some shards, by part: a part is all of them, or in a cluster one."""
        parts = [[shard] for shard in shards] if isinstance(self.redis, Cluster) else [shards] if shards else []
        keys = [[shard_key(self.redis, shard) for shard in part] for part in parts]
        found = self.with_retries(lambda: _reading.call_each(self.redis, name, [(first, others) for first, *others in keys]))
        return list(zip(parts, found, strict=True))

    def _texts(self, key: str, states: Mapping[str, str], wanted: Sequence[str]) -> tuple[dict[str, str], ...]:
        """The specs of steps; of those that are wanted the outputs, if they are over, and infos; the large outputs by content."""
        specs = self._known(key, ":steps", list(states), PIECE)
        specs |= self._known(key, ":steps", sorted({text[1:] for text in specs.values() if text.startswith("=")}), PIECE)
        outs = self._known(key, ":out", [step_id for step_id in wanted if states[step_id].partition(" ")[0] in STEP_OVER])
        blobs = self._known(key, ":blobs", sorted({text[1:] for text in outs.values() if text.startswith("@")}), 1)
        return specs, outs, self._known(key, ":info", wanted), blobs

    def _known(self, key: str, part: str, names: Sequence[str], piece: int = LARGE_PIECE) -> dict[str, str]:
        """The fields of a part of a run that are there, by name."""
        texts = fields(self.redis, self.with_retries, f"{key}{part}", names, piece)
        return {name: text for name, text in zip(names, texts, strict=True) if text is not None}

    def _scan(self, key: str, part: str) -> dict[str, str]:
        return scan(self.redis, self.with_retries, f"{key}{part}")

    def runs(self, *, most: int = 100) -> list[RunRecord]:
        """The newest runs, without their steps."""

        def fetch() -> list[list[tuple[str, float]]]:
            with self.redis.pipeline(transaction=False) as pipe:
                for shard in range(SHARDS):
                    pipe.zrevrange(f"{shard_key(self.redis, shard)}:runs", 0, most - 1, withscores=True)
                return cast("list[list[tuple[str, float]]]", pipe.execute())

        newest = sorted((pair for pairs in self.with_retries(fetch) for pair in pairs), key=lambda pair: (-pair[1], pair[0]))[:most]

        def fetch_meta() -> list[dict[str, str]]:
            with self.redis.pipeline(transaction=False) as pipe:
                for run_id, _ in newest:
                    pipe.hgetall(run_key(self.redis, run_id))
                pipe.time()
                return cast("list[dict[str, str]]", pipe.execute())

        *metas, clock = self.with_retries(fetch_meta)
        now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000  # type: ignore[index]  # TIME is a pair
        return [run_record(run_id, meta, {}, {}, now_ms) for (run_id, _), meta in zip(newest, metas, strict=True) if meta]

    # --- calling ----------------------------------------------------------------------------------------------------

    def _own(self, owner: str) -> str:
        """The owner as one call names it, so that a lease tells which call it is of."""
        return f"{owner}~{next(self._calls)}"

    def _begun(self, run_id: str, owner: str, asked_at: float, answer: Sequence[object]) -> Begun | None:
        """A step that was begun; None if its spec has fields that this worker does not know, and then it was handed back."""
        step_id, attempt, spec, given, failures, flat, digest, tenant, kind, session = cast(
            "tuple[str, int, str, str, int, list[str], str, str, str, str]", tuple(answer[:10])
        )
        waited_s = int(cast(int, answer[10])) / 1000 if answer[10:] and answer[10] != "" else None
        inputs = {flat[i]: json.loads(flat[i + 1]) for i in range(0, len(flat), 2)}
        value = json.loads(given) if given else None
        try:
            own = own_spec_of(spec)
            who = (digest, tenant, kind, session)
            return Begun(run_id, step_id, int(attempt), owner, own, value, int(failures), inputs, *who, asked_at, waited_s)
        except ValidationError as error:
            self.refuse(run_id, step_id, int(attempt), owner, refused_steps.too_old(unknown_fields(error)))
            return None

    def _call(self, name: str, run_id: str, *args: str | float) -> list:  # type: ignore[type-arg]  # what Lua replies
        return self._call_shard(name, shard_of(run_id), *args)

    def _call_each(self, name: str, calls: Sequence[tuple[str, ...]]) -> list[Any]:
        """A script for many runs, told with its other arguments; so many in one round trip."""
        parts = (calls[start : start + CALLS_AT_ONCE] for start in range(0, len(calls), CALLS_AT_ONCE))
        return [reply for part in parts for reply in self._call_all(name, [(shard_of(words[0]), words) for words in part])]

    def _call_shard(self, name: str, shard: int, *args: str | float) -> list:  # type: ignore[type-arg]  # what Lua replies
        sha, text = _scripts.script(name)
        key = shard_key(self.redis, shard)

        def call() -> list:  # type: ignore[type-arg]  # what Lua replies
            ask = self._ask_replicas if self._replicas and name in CONFIRMED else self._ask
            try:
                reply = ask("EVALSHA", sha, 1, key, *args)
            except NoScriptError:
                reply = ask("EVAL", text, 1, key, *args)
            if fault_points.at(f"{name}-replied"):
                raise RedisConnectionError("the reply was dropped")
            return cast("list", reply)  # type: ignore[type-arg]

        return self.with_retries(call)

    def _call_all(
        self, name: str, calls: Sequence[tuple[int, tuple[str | float, ...]]], failed: Callable[[ResponseError], list[Any]] | None = None
    ) -> list[Any]:
        """A script in many shards, in one round trip; `failed` gives the answer for a shard in which it failed: the others keep theirs."""
        return self.with_retries(lambda: self._call_all_once(name, calls, failed))

    def _call_all_once(
        self, name: str, calls: Sequence[tuple[int, tuple[str | float, ...]]], failed: Callable[[ResponseError], list[Any]] | None = None
    ) -> list[Any]:
        sha, _ = _scripts.script(name)
        if not calls:
            return []
        with self.redis.pipeline(transaction=False) as pipe:
            for shard, args in calls:
                pipe.evalsha(sha, 1, shard_key(self.redis, shard), *map(str, args))
            answers: list[Any] = pipe.execute(raise_on_error=False)
        for place, (shard, args) in enumerate(calls):
            if isinstance(answers[place], NoScriptError):
                try:
                    answers[place] = self._call_shard(name, shard, *args)
                except ResponseError as error:
                    answers[place] = error
            if isinstance(answers[place], Exception):
                if failed is None or not isinstance(answers[place], ResponseError):
                    raise answers[place]
                answers[place] = failed(answers[place])
        return answers

    def _ask(self, *words: str | float) -> object:
        return self.redis.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py says nothing of it

    def _ask_replicas(self, *words: str | float) -> object:
        """The same, and wait until replicas have what it changed; told again until they do."""
        with self.redis.pipeline(transaction=False) as pipe:
            for call in (words, ("WAIT", self._replicas, CONFIRM_MS)):
                pipe.execute_command(*call)  # type: ignore[no-untyped-call]  # as above
            reply, confirmed = pipe.execute()
        if confirmed < self._replicas:
            raise Unconfirmed(f"{confirmed} of {self._replicas} replicas have it")
        return cast(object, reply)

    def with_retries(self, call: Callable[[], Reply]) -> Reply:
        """Call Redis, again and again while it is away or will not take writes, for as long as this ledger has patience.

        Raises UnavailableError past it.
        """
        give_up = time.monotonic() + self._patience_s
        pause_s = 0.02
        while True:
            try:
                return call()
            except RedisError as error:
                if not is_transient(error):
                    raise
                failure = error
            if time.monotonic() + pause_s > give_up:
                raise UnavailableError(reason(failure)) from failure
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)


def _not_swept(error: ResponseError) -> list[Any]:
    """The answer of a sweep that failed in one shard; the others are swept."""
    return [[], [], [], 0, 0, str(error), [], [], []]
