"""A client that sends no message: what it accepts is in Redis, and the sweep of a coordinator sends it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cantata.client.client import Client
from cantata.client.runs import ChainRun, TurnRun
from cantata.errors import ConfigError
from cantata.flows.definitions import Chain, Definitions, Tool
from cantata.flows.wire import ChainNode
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import SHARDS, run_key
from tests.waiting import until, when_busy

PATIENCE_S = 40.0
BEGUN_S = 5.0
"""How soon a run begins that nobody announced, on a machine that is not overloaded."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client without a broker of a stack with workers."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop.py").write_text("def add(text: str) -> str:\n    return text + '!'\n")
    add = ChainNode(node_id="a", kind="tool", name="add", input_map={"text": "input.text"}, next_node="wait")
    chain = Chain(entry_node="a", nodes=[add, ChainNode(node_id="wait", kind="wait")])
    quick = Chain(entry_node="a", nodes=[add.model_copy(update={"next_node": None})])
    definitions = Definitions(
        folder=str(folder), tools={"add": Tool(function="shop:add")}, chains={"asking": chain, "quick": quick}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANTATA_BROKER_URL", "none")  # for programs: the workers of a stack send through its Redis
        with Client.embedded(folder / "home", config=definitions) as found:
            yield found


def waiting(client: Client, text: str) -> ChainRun:
    run = client.submit_chain("asking", initial_input={"text": text})
    until(lambda: (step := run.steps(["wait"]).get("wait")) and step.state == "waiting_signal", "the wait")
    return run


def test_a_run_begins_by_the_next_sweep(client: Client) -> None:
    took = []
    for number in range(5):
        since = time.monotonic()
        run = client.submit_chain("quick", initial_input={"text": str(number)})
        assert run.result(PATIENCE_S).outputs == {"a": f"{number}!"}
        took.append(time.monotonic() - since)

    assert min(took) < BEGUN_S, took  # on a busy machine some take longer


def test_what_others_do_with_runs_is_done_without_messages_too(client: Client) -> None:
    run = waiting(client, "tea")
    assert run.signal("wait", "go") == "taken"
    assert run.result(PATIENCE_S).success
    fork = client.fork(run.run_id, "a", changes={"input.text": "cake"})
    until(lambda: fork.steps(["wait"]).get("wait"), "the fork")
    fork.cancel()
    again = client.retry(fork.run_id)
    assert isinstance(again, ChainRun)
    again.signal("wait", "go")
    assert again.result(PATIENCE_S).success


def test_rows_and_schedules_start_too(client: Client) -> None:
    rows = list(client.batch([{"text": str(number)} for number in range(20)], chain="quick"))
    assert sorted(str(row.output) for row in rows) == sorted(f"{number}!" for number in range(20))

    schedules = client.of("").schedules
    schedules.create("hourly", {"every": "1h", "chain": "quick", "input": {"text": "tea"}})
    run = client.run(schedules.trigger("hourly").run_id)
    assert isinstance(run, ChainRun)
    assert run.result(PATIENCE_S).success


def test_a_sweep_sends_it_behind_what_waits_already(valkey: Redis) -> None:
    """A step whose message was lost goes to the head of its queue; this one was never in it."""
    valkey.flushdb()
    ledger = Ledger(valkey, sends=False)
    ledger.runs.accept("new", kind="chain", request="{}", definitions="{}", timeout_s=60, max_attempts=3, max_steps=10)

    before = clock.synchronize(valkey)
    swept = [found for found in ledger.leases.sweep_all(range(SHARDS)) if found.sends or found.overdue]

    assert [(run_id, ready.step_id, ready.has_waited) for found in swept for run_id, ready in found.sends] == [
        ("new", "@start", False)
    ]
    assert [found for found in ledger.leases.sweep_all(range(SHARDS)) if found.sends] == [], "once"
    state = valkey.hget(f"{run_key(valkey, 'new')}:state", "@start")
    assert str(state).startswith("sent ")
    assert int(str(state).rpartition(" ")[2]) >= before * 1000 - 1, (
        "its message is as old as the sweep, so it does not look lost"
    )


@pytest.mark.parametrize("kind", ["signal", "fork"])
def test_what_a_signal_or_a_fork_makes_ready_is_sent_by_the_next_sweep_too(client: Client, kind: str) -> None:
    run: TurnRun | ChainRun = waiting(client, kind)
    if kind == "fork":
        run.signal("wait", "go")
        run.result(PATIENCE_S)
    since = time.monotonic()
    if kind == "fork":
        run = client.fork(run.run_id, "a", changes={"input.text": "cake"})
        until(lambda: (step := run.steps(["wait"]).get("wait")) and step.state == "waiting_signal", "the wait")
    run.signal("wait", "go")

    assert run.result(PATIENCE_S).model_dump()["success"]
    assert time.monotonic() - since < when_busy(3.0), "a step that was sent is looked for after four seconds"


def test_a_gateway_is_refused(client: Client, tmp_path: Path) -> None:
    own = {**os.environ, "CANTATA_BROKER_URL": "none", "REDIS_URL": client.redis_url}
    words = [sys.executable, "-m", "cantata.surfaces.cli", "gateway", "--port", "0"]
    done = subprocess.run(words, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, "this client has no broker" in done.stderr) == (2, True)


def test_its_celery_is_asked_for_in_vain(client: Client) -> None:
    with pytest.raises(ConfigError, match="this client has no broker: CANTATA_BROKER_URL is 'none'"):
        _ = client.app
