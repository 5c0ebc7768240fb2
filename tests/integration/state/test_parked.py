"""Runs that wait for a person cost little, hold nothing, and are told of as any other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
from redis import Redis

from cantata.engine.start import plan_run
from cantata.flows.definitions import Definitions, Tool
from cantata.flows.graph import START, Outcome
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.values import ErrorInfo, JsonValue
from tests.integration.state.play import Play, row, wait, work

MAX_BYTES = 5_000
DEFINITIONS = Definitions(tools={"draft": Tool(function="steps:draft"), "publish": Tool(function="steps:publish")})
REQUEST: JsonValue = {
    "nodes": [
        {"node_id": "draft", "kind": "tool", "name": "draft", "input": {"topic": "spring"}, "next_node": "approve"},
        {
            "node_id": "approve",
            "kind": "wait",
            "timeout": 86400,
            "default": {"approved": False},
            "next_node": "publish",
        },
        {
            "node_id": "publish",
            "kind": "tool",
            "name": "publish",
            "input_map": {"text": "draft", "approved": "approve.approved"},
        },
    ],
    "entry_node": "draft",
    "chain_id": "letter",
}


def park(ledger: Ledger, run_id: str) -> None:
    """A run whose draft waits for approval."""
    definitions = DEFINITIONS.model_dump_json(exclude_defaults=True)
    ledger.runs.accept(
        run_id,
        kind="chain",
        request=to_json(REQUEST),
        definitions=definitions,
        timeout_s=86400,
        max_attempts=3,
        max_steps=1000,
    )
    planned = plan_run("chain", REQUEST, DEFINITIONS)
    for step_id, outcome in ((START, planned), ("draft", Outcome(output="A draft. " * 20))):
        begun = ledger.steps.begin(run_id, step_id, "worker")
        assert isinstance(begun, Begun)
        ledger.steps.commit(begun, outcome, output=to_json(outcome.output), info={"ms": 3.1})


def used(redis: Redis) -> int:
    """Return the bytes that Redis uses, but for what it has yet to write to its disk, and for buffers of clients."""
    memory = cast("dict[str, int]", redis.info("memory"))
    return memory["used_memory"] - memory["mem_not_counted_for_evict"] - memory["mem_clients_normal"]


@pytest.mark.slow("it is about many runs")
def test_a_parked_run_takes_less_than_5_kb(ledger: Ledger) -> None:
    for number in range(50):
        park(ledger, f"first{number}")
    before = used(ledger.redis)

    for number in range(300):
        park(ledger, f"run{number}")

    assert (used(ledger.redis) - before) / 300 < MAX_BYTES
    assert ledger.leases.names() == []


def test_events_go_on_over_parking(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("w"), work("b"), edges=row("a", "w", "b"))
    log = f"{play.shard}:run:run:log"
    last = cast("list[tuple[str, object]]", ledger.redis.xrevrange(log, count=1))[0][0]

    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(ledger.redis.xread, {log: last}, block=5000)
        while not cast(int, ledger.redis.info("clients")["blocked_clients"]):
            pass
        play.do("a")
        ((_, told),) = cast("list[tuple[str, list[tuple[str, dict[str, str]]]]]", blocked.result())
    ledger.steps.signal("run", "w", True)

    assert told[0][1]["t"] == "started"
    assert play.events("w") == ["waiting", "signal", "done"]


# The time of a run


def deadline(play: Play) -> float | None:
    """When the time of a run is over, on Redis's clock; None while its clock stands still."""
    at = play.ledger.redis.zscore(f"{play.shard}:due", f"deadline|{play.run_id}|")
    return None if at is None else float(str(at)) / 1000


def left(play: Play) -> float:
    """The seconds that a run has left while its clock stands still."""
    return int(cast(str, play.ledger.redis.hget(f"{play.shard}:run:{play.run_id}", "time_left"))) / 1000


def now(play: Play) -> float:
    seconds, micros = play.ledger.redis.time()
    return seconds + micros / 1e6


def test_the_clock_of_a_run_stands_still_while_it_waits_for_a_person_only(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=60)
    accepted_at = now(play)
    play.plan(work("a"), wait("w"), work("b"), edges=row("a", "w", "b"))
    assert deadline(play) is not None
    play.do("a")

    assert deadline(play) is None
    assert 50 < left(play) <= 60
    ledger.redis.hset(f"{play.shard}:run:run", "time_left", 7000)  # as if 53 s had passed before it waited
    assert play.sweep().ended == ()
    ledger.steps.signal("run", "w", True)

    assert 0 <= (deadline(play) or 0) - accepted_at - 7 < 5
    play.come_due("deadline")
    assert play.status == "timed_out"


def test_time_passes_while_anything_else_of_the_run_works(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=60)
    play.plan(wait("w"), work("a"), work("b"))
    a, b = play.begin("a"), play.begin("b")
    play.commit(a)
    assert deadline(play) is not None
    play.commit(b, outcome=Outcome(status="retry", retry_in_s=9, error=ErrorInfo(code="broke", message="it broke")))
    assert deadline(play) is not None, "a step that is tried again is under way"
    play.come_due("retry", "b")
    assert deadline(play) is not None
    play.do("b")

    assert deadline(play) is None


def test_a_run_that_waits_twice_at_once_goes_on_with_the_first_signal(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=60)
    play.plan(wait("v"), wait("w"), work("a"), work("b"), edges=(*row("v", "a"), *row("w", "b")))
    assert deadline(play) is None

    ledger.steps.signal("run", "v", 1)
    assert deadline(play) is not None
    play.do("a")
    assert deadline(play) is None
    ledger.steps.signal("run", "w", 1)

    assert deadline(play) is not None


def test_a_step_that_a_person_must_judge_stops_the_clock(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=60)
    play.plan(work("pay", at_most_once=True))

    play.lose_lease(play.begin("pay"))

    assert play.step("pay").state == "waiting_signal"
    assert deadline(play) is None


def test_a_wait_ends_by_its_own_time_though_the_clock_of_the_run_stands_still(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=60)
    play.plan(wait("w", timeout_s=9), work("b"), edges=row("w", "b"))

    play.come_due("wait", "w")

    assert (play.step("w").state, play.step("w").info) == ("done", {"timed_out": True})
    assert deadline(play) is not None


def test_a_parked_run_can_be_cancelled(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("w"))

    assert ledger.runs.cancel("run") == "cancelled"


def test_a_run_that_is_late_says_what_its_time_was_and_who_set_it(ledger: Ledger) -> None:
    ledger.runs.accept(
        "late",
        kind="turn",
        request="{}",
        definitions="{}",
        timeout_s=1.5,
        max_attempts=1,
        max_steps=9,
        timeout_by="defaults.timeout_s",
    )

    Play(ledger, "late").come_due("deadline")

    error = ledger.reader.read("late").error
    assert error is not None
    assert error.message == "the run did not end within its 1.5 s (defaults.timeout_s)"


def test_a_run_that_is_late_says_which_step_no_worker_could_execute(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.steps.refuse("run", "a", begun.attempt, begun.owner, "module 'ours' cannot be imported")

    play.come_due("deadline")

    error = ledger.reader.read("run").error
    assert error is not None
    assert error.message.endswith("; a step waits for a worker that can execute it: module 'ours' cannot be imported")
