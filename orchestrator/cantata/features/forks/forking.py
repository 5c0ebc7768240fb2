"""Forks and retries: a closed run again from a step on, or its unfinished part, as a new run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from cantata import __version__, bounds
from cantata.engine.engine import Engine, check_key
from cantata.engine.start import check_labels, check_size, definitions_from, id_of_key, new_id
from cantata.features.audit.audit import recorded
from cantata.features.forks import fork_requests, fork_store, rewind
from cantata.flows.forks import ForkSpec
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import id_in_shard, shard_of
from cantata.operation import fault_points, traces
from cantata.values import JsonValue


def fork(
    engine: Engine,
    source: str,
    from_step: str | None,
    changes: Mapping[str, JsonValue],
    key: str | None,
    own: Mapping[str, str] | None,
) -> str:
    """Start the fork of a run from a step on, or without a step the retry of its unfinished part; return its id.

    Args:
        engine: The engine.
        source: The run.
        from_step: The first step to execute again.
        changes: Changes of the input.
        key: The same key for the same source gives the same fork.
        own: Labels that replace those of the source.

    Raises:
        ConfigError: The source is not over, has no such step, or does not fit the changes.
        UnknownRunError: There is no such run.
    """
    bounds.check(dict(changes), "changes", max_bytes=engine.limits.input_bytes)
    check_key(key)
    ledger = engine.ledger
    past = fork_store.read(ledger, source)
    made = rewind.retry(past) if from_step is None else rewind.fork(past, from_step)
    definitions = definitions_from(ledger.runs.definitions(source, past.definitions))
    request, given = fork_requests.request_of(past, from_step, changes, definitions)
    if changes:
        check_size(past.kind, to_json(request), definitions)
    run_id = id_in_shard(shard_of(source), new_id() if key is None else id_of_key(f"{source}\n{key}"))
    labels = {**fork_requests.labels_of(past, from_step), **(own or {})}
    check_labels(labels)
    size = fork_store.size_of(ledger, source)
    with engine.starting(run_id, key, labels, size), traces.trace_submission("fork", __version__) as submission:
        since, is_retry = clock.now(), from_step is None
        owner, action = labels.get("tenant", ""), "run.retry" if is_retry else "run.fork"
        is_new = key is None or not ledger.runs.is_known(run_id)
        with recorded(ledger, action, tenant=owner, run_id=source, target=from_step or "") as entry:
            ready = fork_store.make(
                ledger,
                run_id,
                made,
                request=request,
                given=given,
                labels=labels,
                is_retry=is_retry,
                author=entry.actor.signature(),
            )
            entry.detail, entry.was_done = f"as {run_id}", is_new
        submission.run_id, submission.source = run_id if ready else "", source
    fault_points.at("accepted")
    engine.publisher.send_ready(((run_id, step) for step in ready), sent_at=since)
    return run_id


def was_forked_from(
    ledger: Ledger, created: str, source: str, from_step: str | None, changes: Mapping[str, JsonValue]
) -> bool:
    """Return whether a run was created from its source with this step and these changes."""
    _, request, _, labels = ledger.runs.request_of(created)
    if labels.get(fork_requests.FORKED_AT) != from_step:
        return False
    past = fork_store.read(ledger, source)
    wanted, _ = fork_requests.request_of(
        past, from_step, changes, definitions_from(ledger.runs.definitions(source, past.definitions))
    )
    return cast(JsonValue, json.loads(request)) == wanted


def kept_waits(ledger: Ledger, source: str, from_step: str) -> Sequence[tuple[str, ForkSpec]]:
    """Return the waits of a run that were answered, and whose answers a fork from this step would keep."""
    past = fork_store.read(ledger, source)
    made = rewind.fork(past, from_step)
    restarted = {each.step_id for each in made.restarted}.union(made.removed)
    return [
        (step_id, spec)
        for step_id, spec in past.specs.items()
        if spec.kind == "wait" and past.steps[step_id].state == "done" and step_id not in restarted
    ]
