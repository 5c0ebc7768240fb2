"""Reads the source of a fork, and creates the forked run: staged in pieces, created in one call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from secrets import token_hex
from typing import cast

from cantata.errors import CantataError, ConfigError, UnknownRunError
from cantata.features.forks.staging import LOST, Stage
from cantata.flows.forks import EndedRun, EndedStep, Expansion, Fork, ForkSpec
from cantata.flows.graph import START
from cantata.flows.wire import RUN_OVER
from cantata.ledger.encoding import ready_of, states_in, to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ready
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import PIECE, events, fields, scan
from cantata.values import JsonValue, stored

PARTS = (":state", ":steps", ":edges", ":info", ":names", ":expansions")
REFUSED = {
    "gone": "no run {source!r} is known here any more",
    "open": "run {source!r} is not over",
    "undefined": "the definitions of run {source!r} have expired",
    "lost": LOST,
}


def read(ledger: Ledger, run_id: str) -> EndedRun:
    """Read an ended run in pieces; it does not change meanwhile. Raises UnknownRunError, or ConfigError for an open run."""
    key = run_key(ledger.redis, run_id)
    meta = cast("dict[str, str]", ledger.with_retries(lambda: ledger.redis.hgetall(key)))
    if meta and meta["status"] not in RUN_OVER:
        raise ConfigError(f"run {run_id} is {meta['status']}; wait until it is over, or cancel it first")
    steps, spec_texts, edges, infos, names, expansions = (
        scan(ledger.redis, ledger.with_retries, f"{key}{part}") for part in PARTS
    )
    order = [
        entry["s"]
        for entry in events(ledger.redis, ledger.with_retries, f"{key}:log")
        if entry["t"] == "expanded" and entry["s"] != START
    ]
    if not ledger.reader.check_complete(run_id, meta):
        raise ConfigError(f"run {run_id} is open again after a failover; wait until it is over")
    steps = states_in(meta["status"], steps)
    own = {
        step_id: stored(ForkSpec, text, ignores_unknown=True)
        for step_id, text in spec_texts.items()
        if not text.startswith("=")
    }
    shared = {step_id: text[1:] for step_id, text in spec_texts.items() if text.startswith("=")}
    specs = {step_id: own[shared.get(step_id, step_id)] for step_id in steps}
    if not expansions.keys() >= set(order):
        raise ConfigError(
            f"run {run_id} was executed by workers of an older version, which did not record what a fork needs"
        )
    return EndedRun.model_validate(
        {
            "run_id": run_id,
            "status": meta["status"],
            "kind": meta["kind"],
            "request": json.loads(meta["request"]),
            "definitions": meta["definitions"],
            "labels": json.loads(meta["labels"]),
            "specs": specs,
            "shared": shared,
            "names": names,
            "steps": {
                step_id: _ended_step(packed, specs[step_id], json.loads(infos.get(step_id, "{}")))
                for step_id, packed in steps.items()
            },
            "edges": {step_id: _list_of(json.loads(text)) for step_id, text in edges.items()},
            "expansions": {parent: _expansion(json.loads(expansions[parent])) for parent in order},
            "terminals": meta.get("terminals", "[]"),
        }
    )


def size_of(ledger: Ledger, run_id: str) -> int:
    """Return about how many bytes a fork of a run takes."""
    key = run_key(ledger.redis, run_id)
    size, of_logs = cast(
        "list[str | None]", ledger.with_retries(lambda: ledger.redis.hmget(key, ["bytes", "log_bytes"]))
    )
    return int(size or 0) - int(of_logs or 0)


def make(
    ledger: Ledger,
    run_id: str,
    fork: Fork,
    *,
    request: JsonValue,
    given: JsonValue,
    labels: Mapping[str, str],
    is_retry: bool = False,
    author: Mapping[str, JsonValue] | None = None,
) -> tuple[Ready, ...]:
    """Create a forked run; return the steps to send, none if `run_id` exists. Raises UnknownRunError or CantataError.

    Args:
        run_id: The fork's id, in the shard of the source.
        given: The output of its first step.
        is_retry: Whether the source notes the fork as its retry.
        author: The fields by which the event `accepted` of the fork says who made it.
    """
    key = run_key(ledger.redis, run_id)
    if ledger.with_retries(lambda: ledger.redis.exists(key)):
        return ()
    stage = Stage(ledger, run_id, fork, author)
    call: dict[str, JsonValue] = {
        **stage.lay_out(to_json(given)), "source": fork.source, "place": stage.place, "accepted_by": token_hex(4),
        "request": to_json(request), "labels": to_json(dict(labels)), "resend_ms": ledger.caller.resend_ms,
        "is_retry": is_retry,
    }  # fmt: skip
    result, priority, sends, *more = ledger.caller.call("forks/fork", run_id, to_json(call))
    if any(more):
        sends = [*sends, *ledger.caller.finish(run_id, resend_ms=ledger.caller.resend_ms).sends]
    if result != "new":
        stage.clear()
    if result == "known":
        return ()
    if result != "new":
        kind = UnknownRunError if result == "gone" else CantataError
        raise kind(REFUSED[result].format(source=fork.source))
    ready = (*ready_of(sends), *_specs(ledger, key, stage.sent))
    return tuple(Ready(each.step_id, each.spec, int(priority)) for each in ready)


def _specs(ledger: Ledger, key: str, step_ids: Sequence[str]) -> Iterator[Ready]:
    """Yield the steps with their specs; a shared spec is read once."""
    texts = fields(ledger.redis, ledger.with_retries, f"{key}:steps", step_ids, PIECE)
    shared = list({text[1:] for text in texts if text and text.startswith("=")})
    known = dict(
        zip(
            (f"={step_id}" for step_id in shared),
            fields(ledger.redis, ledger.with_retries, f"{key}:steps", shared, PIECE),
            strict=True,
        )
    )
    for step_id, text in zip(step_ids, texts, strict=True):
        if whole := known.get(text or "", text):
            yield from ready_of((step_id, whole))


def _ended_step(packed: str, spec: ForkSpec, info: Mapping[str, JsonValue]) -> EndedStep:
    state, _attempt, pending, taken, *_ = packed.split(" ")
    return EndedStep(state=state, pending=int(pending), taken=int(taken), takes=takes_of(state, spec.on_error, info))


def takes_of(state: str, on_error: str, info: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the labels that a step took, by its outcome."""
    if state == "done":
        return tuple(cast("list[str]", info.get("takes", ["done"])))
    code = cast("dict[str, str]", info.get("error") or {}).get("code")
    if state != "failed" or code == "budget":  # which ends the run, whatever its graph would bear
        return ()
    return ("done",) if on_error == "skip" or code == "missed_deadline" else ("failed",) if on_error == "jump" else ()


def _expansion(stored: Mapping[str, JsonValue]) -> Expansion:
    lists = {part: _list_of(stored.get(part)) for part in ("ids", "own", "counted")}
    return Expansion.model_validate({**stored, **lists, "names": stored.get("names") or {}}, extra="ignore")


def _list_of(value: JsonValue) -> list[JsonValue]:
    """Return a list that Lua wrote: an empty one may be an object."""
    return value if isinstance(value, list) else []
