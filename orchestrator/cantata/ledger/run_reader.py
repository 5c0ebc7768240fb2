"""Reads runs and their steps, large ones in pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from cantata.errors import StoredDataError, UnknownRunError
from cantata.flows.graph import STEP_OVER
from cantata.flows.wire import RUN_OVER
from cantata.ledger.encoding import run_record, states_in, step_record, step_summary
from cantata.ledger.records import RunRecord, StepRecord
from cantata.ledger.redis.keys import RUN_PARTS, run_key, shard_key, shard_of
from cantata.ledger.redis.pieces import LARGE_PIECE, PIECE, ask_each, ask_shards, fields, scan
from cantata.ledger.redis.records import ask_apart, good, readable, remedy_for
from cantata.ledger.runs.run_snapshot import Beginning, Parts, Snapshot, decoded, edges_of, planned_steps
from cantata.ledger.runs.summaries import FIELDS, summary_of, unescaped
from cantata.ledger.scripts import SCRIPTS, ScriptCaller, named
from cantata.values import JsonValue, Usage

REQUEST_BYTES = 20_000  # of a request that a snapshot has
OUTPUT_BYTES = (
    80_000  # of one output that are read: at least 20,000 characters; a run may have a thousand outputs of a megabyte
)
OUTPUTS_AT_ONCE = 1  # in one round trip: one of a megabyte takes Redis 5 ms
SMALL_RUN_STEPS = 100  # a run up to this size is read in one call, which occupies Redis for some 100 µs
SMALL_RUN_BYTES = 30_000


class RunReader:
    """Reads the runs of a ledger."""

    def __init__(self, caller: ScriptCaller) -> None:
        self._caller = caller
        self._redis = caller.redis

    def read(self, run_id: str, names: Sequence[str] | None = None) -> RunRecord:
        """Return all that is known of a run; of a large one with `names`, outputs and infos only of the steps that answer to these and to
        its terminals.

        A large run is read in pieces and may go on meanwhile. An ended run is read as it ended. Of an open one, its status, its terminals
        and up to 500 named steps are of one moment. Other steps may be as they were shortly before, and new ones may be left out. An output
        is returned only for a step that is returned as over. Raises UnknownRunError, also if Redis evicted a part of the run, and
        StoredDataError if its record cannot be read.
        """

        def fail(why: str) -> RunRecord:
            raise StoredDataError(f"run {run_id!r}: {why}")

        return readable(
            lambda: self._read_small(run_id) or self._read_in_pieces(run_id, names), fail, remedy=remedy_for(run_id)
        )

    def _read_small(self, run_id: str) -> RunRecord | None:
        """Return a small run, read in one call; None if it is larger, is not kept or has lost a part."""
        reply = self._caller.call("ledger/read_small", run_id, SMALL_RUN_STEPS, SMALL_RUN_BYTES)
        if not reply:
            return None
        flat, now_ms, found, *parts = reply
        meta, states, moved, specs, outs, infos, blobs = map(named, (flat, *parts))
        if int(meta.get("parts", found)) != found:
            return None
        return _record(run_id, meta, states_in(meta["status"], states), moved, (specs, outs, infos, blobs), int(now_ms))

    def _read_in_pieces(self, run_id: str, names: Sequence[str] | None) -> RunRecord:
        key = run_key(self._redis, run_id)
        while True:
            before = self._status(run_id)
            if before is None:
                raise UnknownRunError.of(run_id)
            states = self._scan(key, ":state")
            moved: dict[str, str] = {}
            for start in range(0, max(1, len(names or ())), PIECE):
                meta, now_ms, found = self._answers(run_id, (names or ())[start : start + PIECE])
                moved |= dict(zip(found[::3], found[1::3], strict=True))
                states |= {step_id: state for step_id, state in zip(found[1::3], found[2::3], strict=True) if state}
            if meta.get("status") in RUN_OVER and before not in RUN_OVER:
                continue
            states = states_in(meta.get("status"), states)
            wanted = (
                list(states)
                if names is None
                else [step_id for step_id in dict.fromkeys(moved.values()) if step_id in states]
            )
            moved = self._scan(key, ":names") if names is None else moved
            texts = self._texts(key, states, wanted)
            if self.check_complete(run_id, meta):
                return _record(run_id, meta, states, moved, texts, now_ms)

    def records(self, run_id: str, step_ids: Sequence[str]) -> dict[str, StepRecord]:
        """Return the records of some steps, by id; unknown ones are left out."""
        key = run_key(self._redis, run_id)
        states = states_in(self._status(run_id), self._known(key, ":state", step_ids, PIECE))
        texts = self._texts(key, states, list(states))
        return {step_id: step_record(step_id, packed, *texts) for step_id, packed in states.items()}

    def check_complete(self, run_id: str, meta: Mapping[str, str]) -> bool:
        """Return whether a run whose fields `meta` were read has not changed since.

        False if it was over and is open now: another master, which knows less, has taken over. Raises UnknownRunError if the run is not
        kept, or is over and has lost a part: its Redis evicts what expires.
        """
        if "status" not in meta:
            raise UnknownRunError.of(run_id)
        if "parts" not in meta:  # it is open
            return True
        key = run_key(self._redis, run_id)

        def fetch() -> tuple[str | None, int]:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.hget(key, "parts")
                pipe.exists(*(key + part for part in RUN_PARTS))
                return cast("tuple[str | None, int]", tuple(pipe.execute()))

        parts, found = self._caller.with_retries(fetch)
        if parts is None and found:
            return False
        if found != int(meta["parts"]):
            raise UnknownRunError(
                f"parts of run {run_id!r} were evicted by Redis; set its maxmemory-policy to noeviction"
            )
        return True

    def newest(self, *, most: int = 100) -> list[RunRecord]:
        """Return the newest runs, without their steps. Of one that cannot be read, only the id and the time are known."""

        def fetch() -> list[list[tuple[str, float]]]:
            return ask_shards(
                self._redis, lambda pipe, key: pipe.zrevrange(f"{key}:runs", 0, most - 1, withscores=True)
            )

        pairs = (pair for pairs in self._caller.with_retries(fetch) for pair in pairs)
        newest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most]

        keys = [run_key(self._redis, run_id) for run_id, _ in newest]
        metas = self._caller.with_retries(lambda: ask_apart(self._redis, keys, lambda pipe, key: pipe.hgetall(key)))
        seconds, micros = self._caller.with_retries(self._redis.time)
        now_ms = seconds * 1000 + micros // 1000
        return [
            _listed(run_id, int(at), meta, now_ms) for (run_id, at), meta in zip(newest, metas, strict=True) if meta
        ]

    def step_ids(self, run_id: str, limit: int) -> list[str]:
        """Return the ids of at most `limit` steps of a run, in no order."""
        return list(scan(self._redis, self._caller.with_retries, f"{run_key(self._redis, run_id)}:state", limit=limit))[
            :limit
        ]

    def outputs(self, run_id: str, step_ids: Sequence[str]) -> list[str | None]:
        """Return the outputs of steps as JSON texts, in order; None where there is none."""
        key, ids = run_key(self._redis, run_id), list(step_ids)
        outs = self._known(key, ":out", ids)
        blobs = self._blobs(key, outs)
        return [blobs.get(text[1:]) if text and text[0] == "@" else text for text in map(outs.get, ids)]

    def outputs_exceed(self, run_id: str, names: Sequence[str], most: int) -> bool:
        """Return whether the outputs of the steps that answer to names, and of the run's terminals, exceed `most` bytes.

        It reads little more of them than that.
        """
        key = run_key(self._redis, run_id)
        if int(self._caller.with_retries(lambda: self._redis.hget(key, "bytes")) or 0) <= most:  # all that it keeps
            return False
        ids: dict[str, None] = {}
        for start in range(0, max(1, len(names)), PIECE):
            ids |= dict.fromkeys(self._answers(run_id, names[start : start + PIECE])[2][1::3])
        size = 0
        for start in range(0, len(ids), LARGE_PIECE):
            for text in self._known(key, ":out", [*ids][start : start + LARGE_PIECE]).values():
                size += sum(map(len, self._blobs(key, {"": text}).values())) if text.startswith("@") else len(text)
                if size > most:
                    return True
        return False

    def infos(self, run_id: str, step_ids: Sequence[str]) -> list[dict[str, JsonValue]]:
        """Return how steps ended, in order; {} where nothing is known yet."""
        infos = self._known(run_key(self._redis, run_id), ":info", list(step_ids))
        return [json.loads(infos.get(step_id, "{}")) for step_id in step_ids]

    def outcomes(self, run_id: str, names: Sequence[str]) -> list[tuple[str, str | None, dict[str, JsonValue]]]:
        """Return the state, the output as JSON text and the info of the steps that answer to names now, in order."""
        found: list[str] = []
        for start in range(0, len(names), PIECE):
            piece = names[start : start + PIECE]
            found += self._answers(run_id, piece)[2][: 3 * len(piece)]
        ids, states = found[1::3], [packed.partition(" ")[0] for packed in found[2::3]]
        over = [step_id for step_id, state in zip(ids, states, strict=True) if state in STEP_OVER]
        texts, infos = (
            dict(zip(over, self.outputs(run_id, over), strict=True)),
            dict(zip(over, self.infos(run_id, over), strict=True)),
        )
        return [(state, texts.get(step_id), infos.get(step_id, {})) for step_id, state in zip(ids, states, strict=True)]

    def in_order_of_end(self, run_id: str, names: Sequence[str]) -> list[str]:
        """Return the names of steps that are over in the order in which they ended, by the log of their run.

        Those whose end is not in it come first: of a fork, the steps that its source executed.
        """
        left, found, before = list(names), list[str](), "+"
        while left and before:
            before, *ended = self._caller.call("ledger/ended_order", run_id, before, *left)
            found += ended
            left = [name for name in left if name not in ended]
        return [*left, *reversed(found)]

    def answering(self, run_id: str, names: Sequence[str]) -> list[str]:
        """Return the steps that answer to names now, in order."""
        found: list[str] = []
        for start in range(0, len(names), PIECE):
            piece = names[start : start + PIECE]
            found += self._answers(run_id, piece)[2][1 : 3 * len(piece) : 3]
        return found

    # --- for pages --------------------------------------------------------------------------------------------------

    def snapshot(self, run_id: str) -> Snapshot:
        """Return a snapshot of a run.

        It is read in pieces while the run may go on: each step is as it was at `offset` or later, so the events after `offset` continue
        from here. The status is the newest; an ended run is read as it ended. Raises UnknownRunError.
        """
        text, size = self._beginning(run_id, REQUEST_BYTES)
        key = run_key(self._redis, run_id)
        while True:
            last = cast(
                "list[tuple[str, object]]",
                self._caller.with_retries(lambda: self._redis.xrevrange(f"{key}:log", count=1)),
            )
            before = self._status(run_id)
            states, names = self._scan(key, ":state"), self._scan(key, ":names")
            (terminals, *values), (seconds, micros) = self._caller.with_retries(lambda: self._fields_now(key))
            if values[FIELDS.index("status")] is None:
                raise UnknownRunError.of(run_id)
            run = summary_of(run_id, text, values, seconds + micros / 1e6)
            if run.status not in RUN_OVER or before in RUN_OVER:
                break
        return Snapshot(
            run=run,
            request=text,
            is_cut=size > REQUEST_BYTES,
            offset=int(last[0][0].partition("-")[2]) if last else 0,
            steps={step_id: step_summary(step_id, packed) for step_id, packed in states_in(run.status, states).items()},
            names={name: step_id for name, step_id in names.items() if step_id in states},  # others came meanwhile
            terminals=tuple(json.loads(terminals or "[]")),
        )

    def parts(self, run_id: str, step_ids: Sequence[str]) -> Parts:
        """Return the recorded details of some steps."""
        key, ids = run_key(self._redis, run_id), list(step_ids)
        if not ids:
            return Parts({}, {}, {}, {})

        def fetch(wanted: list[str], *kinds: str) -> list[dict[str, str]]:
            rows = self._caller.with_retries(
                lambda: ask_each(self._redis, kinds, lambda pipe, kind: pipe.hmget(f"{key}:{kind}", wanted))
            )
            return [{name: text for name, text in zip(wanted, row, strict=True) if text is not None} for row in rows]

        specs, edges, infos, expansions = fetch(ids, "steps", "edges", "info", "expansions")
        shared = {step_id: text[1:] for step_id, text in specs.items() if text.startswith("=")}
        if shared:
            like_specs, like_edges = fetch(sorted(set(shared.values())), "steps", "edges")
            specs |= {step_id: like_specs[like] for step_id, like in shared.items()}
            edges = {step_id: like_edges[like] for step_id, like in shared.items() if like in like_edges} | edges
        out_edges = {step_id: edges_of(json.loads(text)) for step_id, text in edges.items()}
        return Parts(decoded(specs), out_edges, decoded(infos), decoded(expansions))

    def planned(self, run_id: str) -> list[str]:
        """Return the steps of a run's plan, without @start, each behind those that it waits for; none before the run is planned."""
        key = run_key(self._redis, run_id)
        return planned_steps(self._scan(key, ":state"), self._scan(key, ":edges"), self._scan(key, ":expansions"))

    def beginnings(self, run_id: str, step_ids: Sequence[str]) -> list[Beginning]:
        """Return the beginnings of the outputs of steps, in order; null where there is none."""
        key = shard_key(self._redis, shard_of(run_id))
        calls = [(key, (run_id, str(OUTPUT_BYTES), step_id)) for step_id in step_ids]
        replies = self._caller.with_retries(
            lambda: SCRIPTS.call_each(self._redis, "runs/beginning", calls, at_once=OUTPUTS_AT_ONCE)
        )
        return [_beginning_of(text, int(size)) for text, size in replies]

    def given(self, run_id: str, step_id: str) -> JsonValue:
        """Return the given value of a step, such as a map item."""
        text = self._caller.with_retries(lambda: self._redis.hget(f"{run_key(self._redis, run_id)}:given", step_id))
        return cast(JsonValue, json.loads(text)) if text else None

    def _beginning(self, run_id: str, most: int) -> tuple[str, int]:
        """Return the beginning of a run's request, and its whole size in bytes."""
        key = shard_key(self._redis, shard_of(run_id))
        text, size = self._caller.with_retries(
            lambda: SCRIPTS.call(self._redis, "runs/beginning", key, run_id, str(most), "")
        )
        return str(text), int(size)

    def _fields_now(self, key: str) -> tuple[list[str | None], tuple[int, int]]:
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(key, ["terminals", *FIELDS])
            pipe.time()
            return cast("tuple[list[str | None], tuple[int, int]]", tuple(pipe.execute()))

    # --- parts ------------------------------------------------------------------------------------------------------

    def _status(self, run_id: str) -> str | None:
        """Return the status of a run, once what was decided for it is done."""
        key = run_key(self._redis, run_id)
        status, unfinished = cast(
            "list[str | None]", self._caller.with_retries(lambda: self._redis.hmget(key, ["status", "unfinished"]))
        )
        if unfinished is None:
            return status
        self._caller.settle(run_id)
        return cast("str | None", self._caller.with_retries(lambda: self._redis.hget(key, "status")))

    def _answers(self, run_id: str, names: Sequence[str]) -> tuple[dict[str, str], int, list[str]]:
        """Return, of one moment: the fields of a run, the time in ms, and for each name, then for each terminal, name, step and state."""
        flat, now_ms, found = self._caller.call("ledger/answers", run_id, *names)
        if "unfinished" in flat[::2]:
            self._caller.settle(run_id)
            flat, now_ms, found = self._caller.call("ledger/answers", run_id, *names)
        return named(flat), int(now_ms), found

    def _texts(self, key: str, states: Mapping[str, str], wanted: Sequence[str]) -> tuple[dict[str, str], ...]:
        """Return the specs of steps; of the wanted ones the outputs, if they are over, and infos; the large outputs by content."""
        specs = self._known(key, ":steps", list(states), PIECE)
        specs |= self._known(
            key, ":steps", sorted({text[1:] for text in specs.values() if text.startswith("=")}), PIECE
        )
        outs = self._known(
            key, ":out", [step_id for step_id in wanted if states[step_id].partition(" ")[0] in STEP_OVER]
        )
        return specs, outs, self._known(key, ":info", wanted), self._blobs(key, outs)

    def _blobs(self, key: str, outs: Mapping[str, str]) -> dict[str, str]:
        return self._known(key, ":blobs", sorted({text[1:] for text in outs.values() if text.startswith("@")}), 1)

    def _known(self, key: str, part: str, names: Sequence[str], piece: int = LARGE_PIECE) -> dict[str, str]:
        """Return the fields of a part of a run that exist, by name."""
        texts = fields(self._redis, self._caller.with_retries, f"{key}{part}", names, piece)
        return {name: text for name, text in zip(names, texts, strict=True) if text is not None}

    def _scan(self, key: str, part: str) -> dict[str, str]:
        return scan(self._redis, self._caller.with_retries, f"{key}{part}")


def _listed(run_id: str, at_ms: int, meta: Mapping[str, str] | Exception, now_ms: int) -> RunRecord:
    def row(why: str) -> RunRecord:
        return RunRecord(
            run_id=run_id,
            status="failed",
            kind="",
            request='{"text":""}',
            definitions="",
            created_at_ms=at_ms,
            closed_at_ms=None,
            now_ms=now_ms,
            error=None,
            usage=Usage(),
            count=0,
            left=0,
            failures=0,
            terminals=(),
            labels={},
            names={},
            steps={},
            unreadable=why,
        )

    return readable(lambda: run_record(run_id, good(meta), {}, {}, now_ms), row, remedy=remedy_for(run_id))


def _record(
    run_id: str,
    meta: Mapping[str, str],
    states: Mapping[str, str],
    moved: Mapping[str, str],
    texts: Sequence[dict[str, str]],
    now_ms: int,
) -> RunRecord:
    """Return the record of a run; `texts` are the specs, outputs, infos and large outputs of its steps."""
    steps = {step_id: step_record(step_id, packed, *texts) for step_id, packed in states.items()}
    names = {name: step_id for name, step_id in moved.items() if name != step_id and step_id in steps}
    return run_record(run_id, meta, steps, names, now_ms)


def _beginning_of(text: str, size: int) -> Beginning:
    if size <= OUTPUT_BYTES:
        return Beginning(json.loads(text) if text else None)
    return Beginning(unescaped(text[1:]) if text.startswith('"') else text, is_cut=True)
