"""Runs that wait for a person cost little, hold nothing, and are told of as any other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import cast

from redis import Redis

from orchestrator.coordinator import start
from orchestrator.models.definitions import Definitions, Tool
from orchestrator.models.graph import START, Outcome
from orchestrator.models.values import JsonValue
from orchestrator.state.encoding import to_json
from orchestrator.state.ledger import Ledger
from orchestrator.state.records import Begun
from tests.integration.state.play import Play, row, wait, work

MOST_BYTES = 5_000
DEFINITIONS = Definitions(tools={"draft": Tool(function="steps:draft"), "publish": Tool(function="steps:publish")})
REQUEST: JsonValue = {
    "nodes": [
        {"node_id": "draft", "kind": "tool", "name": "draft", "input": {"topic": "spring"}, "next_node": "approve"},
        {"node_id": "approve", "kind": "wait", "timeout": 86400, "default": {"approved": False}, "next_node": "publish"},
        {"node_id": "publish", "kind": "tool", "name": "publish", "input_map": {"text": "draft", "approved": "approve.approved"}},
    ],
    "entry_node": "draft",
    "chain_id": "letter",
}


def park(ledger: Ledger, run_id: str) -> None:
    """A run whose draft waits for approval."""
    definitions = DEFINITIONS.model_dump_json(exclude_defaults=True)
    ledger.accept(run_id, kind="chain", request=to_json(REQUEST), definitions=definitions, timeout_s=86400, max_attempts=3, max_steps=1000)
    planned = start("chain", REQUEST, DEFINITIONS)
    for step_id, outcome in ((START, planned), ("draft", Outcome(output="A draft. " * 20))):
        begun = ledger.begin(run_id, step_id, "worker")
        assert isinstance(begun, Begun)
        ledger.commit(begun, outcome, output=to_json(outcome.output), info={"ms": 3.1})


def used(redis: Redis) -> int:
    return int(cast("dict[str, int]", redis.info("memory"))["used_memory"])


def test_a_parked_run_takes_less_than_5_kb(ledger: Ledger) -> None:
    for number in range(50):
        park(ledger, f"first{number}")
    before = used(ledger.redis)

    for number in range(300):
        park(ledger, f"run{number}")

    assert (used(ledger.redis) - before) / 300 < MOST_BYTES
    assert ledger.leases() == []


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
    ledger.signal("run", "w", True)

    assert told[0][1]["t"] == "started"
    assert play.events("w") == ["waiting", "signal", "done"]
