"""Workers are drained and queues are paused while runs go on: nothing is lost, nothing is done twice, and others notice nothing."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.errors import ConfigError
from cantata.flows.definitions import Webhook
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import Journal, tool
from tests.integration.fleet.plant import PATIENCE_S, Plant, done, own_definitions, release, run_slow, state_of
from tests.integration.receiver import Receiver, receiving
from tests.waiting import until

DRAIN_S = 3.0


@pytest.fixture
def plant() -> Iterator[Plant]:
    """A Redis and a coordinator."""
    with tempfile.TemporaryDirectory(prefix="dp", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = Plant(Path(folder))
        try:
            found.worker("first", "coordinator", concurrency=2)
            yield found
        finally:
            found.end()


@pytest.fixture(autouse=True)
def _echoes(models: ScriptedModels) -> Iterator[None]:
    """The models of these tests and others echo again."""
    yield
    models.script([])


@pytest.fixture
def client(plant: Plant) -> Iterator[Client]:
    """A client of that Redis."""
    with Client(plant.url, config=own_definitions()) as client:
        yield client


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_a_drained_worker_finishes_its_step_and_takes_no_other(plant: Plant, client: Client, journal: Journal) -> None:
    plant.worker("one", "tools")
    under_way = run_slow(client, journal, "under way", name="held")
    until(lambda: journal.of("start", "under way"), "the start")
    waiting = [run_slow(client, journal, mark) for mark in range(6)]

    client.fleet.drain("one", by="ann")
    until(lambda: state_of(plant, "one") == "draining", "the drain", PATIENCE_S)
    two = plant.worker("two", "tools")
    assert all(run.result(PATIENCE_S).success for run in waiting), "another worker does what this one left"
    assert not journal.of("finish", "under way")
    release(journal)
    assert under_way.result(PATIENCE_S).success
    until(lambda: state_of(plant, "one") == "drained", "the end of the drain", PATIENCE_S)

    one = plant.announced("one")
    assert one is not None
    assert (one.drained_by, one.serving, one.held) == ("ann", (), ("tools",))
    starts = Counter(line["name"] for line in journal.of("start"))
    assert starts == Counter(["under way", *range(6)])
    assert {line["pid"] for line in journal.of("start") if line["name"] != "under way"}.isdisjoint(
        {two.pid, one.pid}
    ), "children do them"
    assert "taking no work: one@" in plant.checks()["workers"]
    assert "by ann" in plant.checks()["workers"]
    assert plant.checks()["queue tools"].startswith("ok: 0 of 1 slots")


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_steps_behind_a_slow_one_of_their_message_are_given_back_at_once(
    plant: Plant, client: Client, journal: Journal
) -> None:
    plant.worker("one", "tools")
    body = tool(
        "item", "quick", journal=str(journal.path), input_map={"mark": "_item.mark", "seconds": "_item.seconds"}
    )
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "item", "max_concurrency": 20},
        body,
    ]
    items = [{"mark": mark, "seconds": 0.0 if mark else 20.0} for mark in range(20)]
    run = client.submit_chain({"nodes": nodes, "entry_node": "all", "initial_input": {"items": items}})
    until(lambda: journal.of("start", 0), "the start of the slow one")
    assert (len(journal.of("start")), plant.waiting("tools") < 19) == (1, True), "its message has others behind it"
    plant.worker("two", "tools")
    until(lambda: plant.waiting("tools") == 0, "what waited in the queue", PATIENCE_S)
    assert len(done(journal)) < 19, "those in its message wait for it"

    client.fleet.drain("one")

    until(lambda: len(done(journal)) == 19, "the others, elsewhere", PATIENCE_S)
    assert not journal.of("finish", 0), "though the slow one still runs"
    assert run.result(PATIENCE_S).success
    assert done(journal) == dict.fromkeys(range(20), 1)


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_a_worker_is_undrained_and_a_new_process_of_its_name_is_not_drained(
    plant: Plant, client: Client, journal: Journal
) -> None:
    plant.worker("one", "tools")
    assert plant.submit("workers", "drain", "one", "--as", "ann").stdout.startswith("worker one@")
    run = run_slow(client, journal, "late")
    told = next(event for event in run.log(timeout_s=PATIENCE_S) if event.type == "unserved")
    assert "no worker serves queue 'tools', since one@" in str(told.explanation)
    assert "drained by ann" in str(told.explanation)
    assert plant.checks()["queue tools"].startswith("failing: no worker serves queue 'tools', since one@")
    assert any("drained by ann" in fault for fault in client.fleet.faults())

    assert "takes work again" in plant.submit("workers", "undrain", "one").stdout
    assert run.result(PATIENCE_S).success

    assert "is drained" in plant.submit("workers", "drain", "one").stdout
    plant.stop("one")
    plant.worker("one", "tools")
    assert run_slow(client, journal, "after the restart").result(PATIENCE_S).success
    assert state_of(plant, "one") == "serving"


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_steps_past_the_drain_time_are_released_and_run_elsewhere(
    plant: Plant, client: Client, journal: Journal
) -> None:
    plant.worker("one", "tools", drain_s=DRAIN_S)
    long = run_slow(client, journal, "long", 20.0)
    until(lambda: journal.of("start", "long"), "the start")
    plant.worker("two", "tools")

    since = time.monotonic()
    client.fleet.drain("one")
    until(lambda: len(journal.of("start", "long")) == 2, "the second start", PATIENCE_S)

    assert time.monotonic() - since < DRAIN_S + 6.0
    until(lambda: state_of(plant, "one") == "drained", "the end of the drain", PATIENCE_S)
    assert long.record().steps["a"].failures == 0, "released, uncounted"
    long.cancel()


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_a_drained_worker_that_is_killed_is_no_lost_worker_and_one_that_is_to_exit_exits(
    plant: Plant, client: Client
) -> None:
    plant.worker("one", "tools")
    plant.worker("two", "tools")
    client.fleet.drain("one")
    until(lambda: state_of(plant, "one") == "drained", "the drain", PATIENCE_S)
    plant.stop("one")

    client.fleet.drain("two", exits=True)

    assert plant.workers.pop("two").wait(PATIENCE_S) == 0
    until(lambda: plant.announced("one") is None, "the silence", PATIENCE_S)
    time.sleep(11.0)  # after ten seconds a worker that ended without a shutdown is listed as lost
    assert not client.fleet.load().lost_workers


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_a_paused_queue_keeps_its_work_whatever_restarts(plant: Plant, client: Client, journal: Journal) -> None:
    plant.worker("one", "tools", "beside")
    under_way = run_slow(client, journal, "under way", name="held")
    until(lambda: journal.of("start", "under way"), "the start")

    since = time.monotonic()
    said = plant.submit("queues", "pause", "tools", "--as", "ann")
    assert said.returncode == 0, said
    assert re.match(r"queue 'tools' is paused since \S+ \S+ UTC by ann", said.stdout), said
    until(lambda: (found := plant.announced("one")) and found.held == ("tools",), "the pause")
    assert time.monotonic() - since < 10.0
    waiting = [run_slow(client, journal, mark) for mark in range(5)]
    release(journal)
    assert under_way.result(PATIENCE_S).success, "what runs ends"
    assert run_slow(client, journal, "beside", name="beside").result(PATIENCE_S).success, "the queue beside goes on"

    plant.restart_redis()
    plant.stop("one", signal.SIGTERM)
    plant.worker("two", "tools", "beside", concurrency=2)
    assert run_slow(client, journal, "beside again", name="beside").result(PATIENCE_S).success
    told = next(event for event in waiting[0].log(timeout_s=PATIENCE_S) if event.type == "unserved")
    assert "queue 'tools' is paused since" in str(told.explanation)
    assert "by ann" in str(told.explanation)
    assert not {*range(5)} & {line["name"] for line in journal.of("start")}
    load = client.fleet.queues(["tools"])["tools"]
    assert (load.ready, load.work, load.workers) == (5, 0, 1)
    assert load.paused
    assert load.paused.by == "ann"
    check = plant.checks()["queue tools"]
    assert re.match(r"degraded: paused since \S+ \S+ UTC by ann; 0 under way, 5 waiting", check), check
    assert "deadlines of its steps keep running; resume it with `submit queues resume tools`" in check
    assert not [fault for fault in client.fleet.faults() if "tools" in fault]

    client.fleet.resume_queue("tools", by="ann")

    assert all(run.result(PATIENCE_S).success for run in waiting)
    assert done(journal) == Counter(["under way", "beside", "beside again", *range(5)])


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_what_waits_in_a_paused_queue_is_not_sent_twice_and_its_deadline_keeps_running(
    plant: Plant, client: Client, journal: Journal
) -> None:
    plant.worker("one", "tools")
    client.fleet.pause_queue("tools", by="ann")
    until(lambda: (found := plant.announced("one")) and found.held, "the pause")
    node = tool("a", "slow", journal=str(journal.path), mark="late", seconds=0)

    late = client.submit_chain({"nodes": [node], "entry_node": "a", "timeout": 4})
    patient = run_slow(client, journal, "patient")

    answer = late.result(PATIENCE_S)
    assert not answer.success
    assert late.status() == "timed_out"
    assert plant.waiting("tools") == 2, "each step has one message, also after the sweep looked for it"
    client.fleet.resume_queue("tools")
    assert patient.result(PATIENCE_S).success
    assert done(journal) == {"patient": 1}


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_agents_workers_call_no_tool_of_a_paused_queue_in_place(
    plant: Plant, client: Client, journal: Journal, models: ScriptedModels
) -> None:
    def ask(mark: str) -> TurnRun:
        arguments = {"journal": str(journal.path), "mark": mark, "seconds": 0}
        calls = [{"name": "quick", "arguments": arguments}]
        models.script([{"after_tools": 0, "tool_calls": calls}, {"after_tools": 1, "reply": "done"}])
        return client.submit_turn("call it", agent="caller")

    talker = plant.worker("talker", "agents", concurrency=4, CANTATA_TOOLS_IN_AGENTS="1")
    assert ask("in place").result(PATIENCE_S).output == "done", "there is no tools worker"
    assert [line["pid"] for line in journal.of("finish")] == [talker.pid]
    client.fleet.pause_queue("tools")
    until(lambda: (found := plant.announced("talker")) and "tools" in found.held, "the pause", PATIENCE_S)

    run = ask("paused")
    until(lambda: plant.waiting("tools") == 1, "the call in the queue", PATIENCE_S)
    plant.worker("one", "tools")
    beside = run_slow(client, journal, "beside", name="beside")
    plant.worker("two", "beside")
    assert beside.result(PATIENCE_S).success
    assert {line["name"] for line in journal.of("start")} == {"in place", "beside"}

    client.fleet.resume_queue("tools")
    assert run.result(PATIENCE_S).output == "done"
    assert done(journal) == Counter(["in place", "paused", "beside"])


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_a_worker_that_starts_later_takes_nothing_of_a_paused_queue(
    plant: Plant, client: Client, models: ScriptedModels
) -> None:
    models.script([{"reply": "at last"}])
    client.fleet.pause_queue("agents", by="ann")
    before, turns = len(models.requests), [client.submit_turn(f"turn {number}", agent="keeper") for number in range(8)]
    until(lambda: plant.waiting("agents") == 8, "the turns in the queue", PATIENCE_S)

    plant.worker("talker", "agents", concurrency=8)

    until(lambda: (found := plant.announced("talker")) and found.held == ("agents",), "its word", PATIENCE_S)
    until(lambda: client.fleet.queues()["agents"].workers == 1, "its slots", PATIENCE_S)
    assert (len(models.requests), plant.waiting("agents")) == (before, 8)
    client.fleet.resume_queue("agents")
    assert {turn.result(PATIENCE_S).output for turn in turns} == {"at last"}


def has(receiver: Receiver, count: int) -> bool:
    """Return whether so many messages were received."""
    return len(receiver.messages) == count


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_the_queue_of_webhooks_beside_agents_is_paused_alone_and_more_than_once(
    plant: Plant, journal: Journal, models: ScriptedModels
) -> None:
    models.script([{"reply": "said"}])
    plant.worker("talker", "agents", concurrency=4)
    with receiving() as receiver:
        hook = Webhook(url=receiver.url, secret_env="PATH", allow_private=True, on=["end"])
        own = own_definitions().model_copy(update={"webhooks": {"ops": hook}})
        with Client(plant.url, config=own) as client:
            for number in (1, 2):
                client.fleet.pause_queue("webhooks")
                until(
                    lambda: (found := plant.announced("talker")) and found.held == ("webhooks",),
                    "the pause",
                    PATIENCE_S,
                )
                assert client.submit_turn("hello", agent="keeper").result(PATIENCE_S).output == "said"
                until(lambda: plant.waiting("webhooks") == 1, "the message that waits", PATIENCE_S)
                assert len(receiver.messages) == number - 1
                client.fleet.resume_queue("webhooks")
                until(partial(has, receiver, number), "the message", PATIENCE_S)
                until(
                    lambda: (found := plant.announced("talker")) and not found.held, "the end of the pause", PATIENCE_S
                )


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_workers_of_threads_are_drained_with_their_calls_and_serve_again(
    plant: Plant, client: Client, models: ScriptedModels
) -> None:
    models.script([{"match": "slow", "delay_s": 4.0, "reply": "at last"}, {"reply": "at once"}])
    plant.worker("talker", "agents", concurrency=4)
    plant.worker("second", "coordinator", concurrency=2)
    before = len(models.requests)
    slow = client.submit_turn("slow", agent="keeper")
    until(lambda: len(models.requests) > before, "the call of the model", PATIENCE_S)

    for name in ("talker", "first"):
        client.fleet.drain(name, by="ann")
    until(lambda: state_of(plant, "talker") == "draining", "the drain", PATIENCE_S)
    quick = client.submit_turn("quick", agent="keeper")

    assert slow.result(PATIENCE_S).output == "at last", "it ends where it began"
    assert len(models.requests) == before + 1
    until(
        lambda: (state_of(plant, "talker"), state_of(plant, "first")) == ("drained", "drained"), "the end", PATIENCE_S
    )
    assert quick.status() in ("accepted", "running")
    plant.worker("other", "agents", concurrency=4)
    assert quick.result(PATIENCE_S).output == "at once"
    for name in ("other", "second"):
        plant.stop(name)
    for name in ("talker", "first"):
        client.fleet.undrain(name)
    assert client.submit_turn("again", agent="keeper").result(PATIENCE_S).output == "at once"


@pytest.mark.slow("workers are started, and heed a decision with their next announcement")
def test_unknown_names_are_refused_with_the_nearest(plant: Plant, client: Client) -> None:
    for act, message in (
        (lambda: client.fleet.drain("frist"), "no worker is called 'frist'; did you mean 'first@"),
        (lambda: client.fleet.undrain("nobody"), "no worker is called 'nobody'"),
        (lambda: client.fleet.pause_queue("tolls"), "no queue is called 'tolls'; did you mean 'tools'?"),
        (lambda: client.fleet.resume_queue("tools"), "queue 'tools' is not paused; no queue is"),
    ):
        with pytest.raises(ConfigError, match="no") as refused:
            act()
        assert message in str(refused.value)
    assert not client.fleet.load().paused_queues
    refused_command = plant.submit("workers", "drain", "frist")
    assert refused_command.returncode == 2
    assert "did you mean 'first@" in refused_command.stderr
