"""Between the end of a step and its record: what could lose a finished outcome, and does not."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from redis import Redis

from cantata.engine.dispatch.celery_app import Carried, make_app
from cantata.errors import UnavailableError
from cantata.flows.graph import START, Edge, Graph, Outcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.ledger.redis import outages
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.values import JsonValue
from cantata_workers.process.message import Delivery, MessageExecution
from cantata_workers.process.process import Process
from cantata_workers.process.queue_holds import QueueHolds
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps.handlers import HANDLERS
from tests.waiting import until

RUN = "r1"


@pytest.fixture
def process(valkey: Redis, ledger: Ledger) -> Iterator[Process]:
    """A worker process, as far as recording goes, with a run that waits for its first step."""
    process = Process(f"unix://{valkey.connection_pool.connection_kwargs['path']}", "worker")
    accepted = ledger.runs.accept(
        RUN, kind="chain", request="{}", definitions="{}", timeout_s=300.0, max_attempts=3, max_steps=100
    )
    assert accepted.new
    yield process
    process.stop()


NOTHING = SimpleNamespace(chain=None, chord=None, group=None)
"""The request of a message that carries nothing."""


def execution_of(
    process: Process,
    valkey: Redis,
    *steps: str,
    is_redelivered: bool = False,
    request: SimpleNamespace = NOTHING,
) -> MessageExecution:
    app = make_app(f"redis+socket://{valkey.connection_pool.connection_kwargs['path']}", None)
    delivery = Delivery("run.start", "coordinator", 0, is_redelivered)
    return MessageExecution(app, process, RUN, [START, *steps], delivery, Carried(request))


def begun_by(process: Process) -> Begun:
    begun = process.ledger.steps.begin(RUN, START, process.owner)
    assert isinstance(begun, Begun)
    return begun


def deadline_of(begun: Begun, valkey: Redis) -> float:
    score = valkey.zscore(f"{shard_key(None, shard_of(RUN))}:leases", begun.lease)
    assert score is not None
    return float(score)


def test_a_step_that_is_passed_on_carries_what_its_message_did(process: Process, valkey: Redis) -> None:
    link = {
        "task": "agent.turn",
        "args": [RUN, ["next"]],
        "kwargs": {},
        "options": {"queue": "cantata.agents"},
        "immutable": True,
    }
    request = SimpleNamespace(chain=[link], chord=link, group="g")
    process.holds.finish()

    assert execution_of(process, valkey, request=request).run() is None

    message = json.loads(str(valkey.lpop("cantata.coordinator")))
    args, _, embed = json.loads(base64.b64decode(message["body"]))
    assert args == [RUN, [START]]
    assert (embed["chain"], embed["chord"], message["headers"]["group"]) == ([link], link, "g")
    assert request.chain is None, "this task sends none of it"


def test_steps_behind_a_running_one_go_back_to_the_head_of_their_queue_as_soon_as_it_is_held(
    process: Process, ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.holds = QueueHolds(["coordinator", "tools"])
    runs, may_end = threading.Event(), threading.Event()

    def handler(work: StepContext) -> Outcome:
        runs.set()
        assert may_end.wait(40.0)
        return Outcome(output="finished")

    monkeypatch.setitem(HANDLERS, "run.start", handler)
    valkey.rpush("cantata.coordinator", "a message before them")
    worker = threading.Thread(target=execution_of(process, valkey, "second", "third").run)
    worker.start()
    try:
        until(runs.is_set, "the first step")
        process.holds.set({"tools"})
        assert valkey.llen("cantata.coordinator") == 1, "another queue is none of its business"
        process.holds.set({"coordinator"})
        until(lambda: valkey.llen("cantata.coordinator") == 2, "what was given back, though the first step still runs")
    finally:
        may_end.set()
        worker.join(40.0)

    message = json.loads(str(valkey.rpop("cantata.coordinator")))
    assert json.loads(base64.b64decode(message["body"]))[0] == [RUN, ["second", "third"]]
    assert valkey.llen("cantata.coordinator") == 1, "they were given back once"
    assert ledger.reader.records(RUN, [START])[START].state == "done"


def test_an_outcome_waits_for_a_redis_that_takes_no_writes(
    process: Process, ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.ledger = Ledger(process.ledger.redis, patience_s=0.05)
    waits, attempts = threading.Event(), []
    tell = outages.warn

    def handler(work: StepContext) -> Outcome:
        attempts.append(work.begun.attempt)
        valkey.config_set("min-replicas-to-write", 1)
        return Outcome(output="finished")

    def telling(log: object, event: str, failure: Exception, **fields: object) -> None:
        tell(log, event, failure, **fields)
        if event == "outcome_delayed":
            waits.set()

    monkeypatch.setitem(HANDLERS, "run.start", handler)
    monkeypatch.setattr(outages, "warn", telling)
    worker = threading.Thread(target=execution_of(process, valkey).run)
    worker.start()
    try:
        until(waits.is_set, "a commit that Redis refused for longer than the ledger has patience")
    finally:
        valkey.config_set("min-replicas-to-write", 0)
    worker.join(40.0)

    step = ledger.reader.records(RUN, [START])[START]
    assert (step.state, step.output, attempts) == ("done", "finished", [1])


def test_a_lease_is_renewed_until_the_outcome_is_recorded(process: Process, valkey: Redis) -> None:
    begun = begun_by(process)
    deadline = deadline_of(begun, valkey)

    with process.leased(begun), process.running(begun):
        pass
    with process.leased(begun):
        until(lambda: deadline_of(begun, valkey) > deadline, "a renewal of the step that is done and not recorded")


def test_a_finished_step_is_not_handed_back(process: Process, ledger: Ledger, valkey: Redis) -> None:
    begun = begun_by(process)
    deadline = deadline_of(begun, valkey)

    with process.leased(begun):
        process.hand_back()
        until(lambda: deadline_of(begun, valkey) > deadline, "a renewal, which comes after what is handed back")
        answer = process.ledger.steps.commit(begun, Outcome(), output="1", info={})

    assert answer.result == "ok"


def test_an_outcome_that_cannot_be_recorded_fails_its_step_and_says_so(
    process: Process, ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        HANDLERS, "run.start", lambda work: Outcome(fragment=Graph(edges=(Edge(source=START, target="nobody"),)))
    )

    execution_of(process, valkey).run()

    error = ledger.reader.newest(most=1)[0].error
    assert error is not None
    assert (error.code, error.step) == ("internal", START)
    assert "its outcome could not be recorded" in error.message


def test_a_text_with_half_a_character_is_recorded(
    process: Process, ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HANDLERS, "run.start", lambda work: Outcome(detail={"finish": "half \ud83d of it"}))

    execution_of(process, valkey).run()

    assert ledger.reader.infos(RUN, [START])[0]["finish"] == "half ? of it"


def test_a_step_that_could_not_reach_redis_is_handed_back_uncounted(
    process: Process, ledger: Ledger, valkey: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def handler(work: StepContext) -> Outcome:
        tries.append(work.begun.attempt)
        if len(tries) == 1:
            raise UnavailableError("Redis cannot be reached")
        return Outcome(output=1)

    monkeypatch.setitem(HANDLERS, "run.start", handler)
    execution_of(process, valkey).run()
    ledger.leases.sweep(shard_of(RUN))
    execution_of(process, valkey).run()

    step = ledger.reader.records(RUN, [START])[START]
    assert (tries, step.state, step.failures, step.crashes) == ([1, 2], "done", 0, 0)


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (None, [("retry", "its process died or lost the broker; the step is retried if its lease expires")]),
        (Outcome(status="retry", retry_in_s=60.0), [("retry", "took too long")]),
        (Outcome(status="failed"), [("failed", "took too long")]),
        (Outcome(), []),
    ],
    ids=["killed", "retry", "failed", "done"],
)
def test_a_message_that_comes_again_since_its_process_was_killed_tells_how_its_step_ended(
    process: Process, valkey: Redis, outcome: Outcome | None, shown: list[tuple[str, str]]
) -> None:
    begun = begun_by(process)
    if outcome is not None:
        error: JsonValue = {"code": "timeout", "message": "took too long", "step": START}
        process.ledger.steps.commit(
            begun, outcome, output="null", info={} if outcome.status == "done" else {"error": error}
        )
    process.owner = "another~1"

    for is_redelivered in (False, True):
        loop = execution_of(process, valkey, is_redelivered=is_redelivered)
        assert loop.run() is None
        assert [(lost.status, lost.reason) for lost in loop.lost] == (shown if is_redelivered else [])
        assert loop.done == []
