"""Webhooks with worker processes that are killed: a message is never lost, and one that comes twice has the same id."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.flows.definitions import Command, Definitions, Webhook
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.surfaces.cli.main import submit
from cantata.testing import KillableStack, ScriptedModels
from cantata.values import JsonValue
from cantata_workers.tools.webhook_post import HOST_POSTS, TENANT_POSTS
from tests.integration.fleet.conftest import definitions
from tests.integration.receiver import HANG, Receiver, receiving
from tests.waiting import until

ACME = {"tenant": "acme"}
SECRET = "PATH"  # a variable that the workers of every stack have
WAIT = {"entry_node": "ask", "nodes": [{"node_id": "ask", "kind": "wait"}]}
SAY = {"node_id": "say", "kind": "proc", "name": "say"}  # so that a worker ends the run
CHAIN = {"entry_node": "ask", "nodes": [{"node_id": "ask", "kind": "wait", "next_node": "say"}, SAY]}


def client_of(stack: KillableStack, receiver: Receiver) -> Client:
    hook = Webhook(url=receiver.url, secret_env=SECRET, allow_private=True, on=["end", "wait"])
    return stack.client(Definitions(webhooks={"ops": hook}, commands={"say": Command(command=["/bin/echo", "over"])}))


def states(client: Client, run: Run) -> list[str]:
    """How the runs stand that post the events of a run."""
    return [client.ledger.runs.status(run_id) for run_id in run.record().webhook_runs]


def over(client: Client, run: Run, count: int) -> bool:
    """Whether so many messages of a run were delivered, and all that there are."""
    return states(client, run) == ["succeeded"] * count


def shown_by_runs_show(stack: KillableStack, run: Run) -> str:
    """What `submit runs show` says of a run."""
    done = CliRunner().invoke(submit, ["runs", "show", run.run_id], env={"REDIS_URL": stack.url})
    assert done.exit_code == 0, done.output
    return done.stderr


def pauses(client: Client, posting: str) -> bool:
    """Whether a message waits for its next attempt."""
    return client.ledger.reader.records(posting, ["deliver"])["deliver"].state == "waiting"


@pytest.mark.slow("two workers are killed, whose leases others take over")
def test_no_message_is_lost_where_a_worker_dies(cantata_stack: KillableStack) -> None:
    with receiving() as receiver:
        client = client_of(cantata_stack, receiver)
        # the run's end is recorded and not sent; its message is posted and not recorded
        for point, most in (("run-closed", 1), ("tool-finished", 2)):
            run = client.submit_chain(CHAIN)
            until(partial(over, client, run, 1), "the message that it waits")
            receiver.messages.clear()

            with cantata_stack.kill_at(point) as fault:
                run.signal("ask", None)
                until(partial(getattr, fault, "happened"), "the death")

            until(partial(over, client, run, 2), "the message that it ended")
            came = Counter(message.id for message in receiver.messages)
            assert came.keys() == {run.record().webhook_runs[1]}
            assert 1 <= came.total() <= most
            assert receiver.messages[0].is_signed_with(os.environ[SECRET])
            assert receiver.messages[0].content["data"]["result"]["outputs"]["say"]["stdout"] == "over\n"


def test_an_ill_receiver_gets_its_message_hours_later_from_no_waiting_worker(cantata_stack: KillableStack) -> None:
    with receiving(500, 500, 500) as receiver:
        client = client_of(cantata_stack, receiver)
        run = client.submit_chain(WAIT)
        for number in range(1, 4):
            until(partial(receiver.has, number), f"attempt {number}")
            (posting,) = run.record().webhook_runs
            until(partial(pauses, client, posting), "the pause")
            cantata_stack.skip(minutes=1)

        assert client.of(None).find(posting).result(40).status == "succeeded"
    assert {message.id for message in receiver.messages} == {posting}
    assert len(receiver.messages) == 4


def test_a_message_that_was_given_up_is_posted_again_under_its_id(cantata_stack: KillableStack) -> None:
    with receiving(200, 410) as receiver:
        client = client_of(cantata_stack, receiver)
        run = client.submit_chain(WAIT)
        until(lambda: states(client, run) == ["succeeded"], "the message that it waits")
        run.signal("ask", True)
        until(lambda: sorted(states(client, run)) == ["failed", "succeeded"], "the refusal")
        (failed,) = [run_id for run_id in run.record().webhook_runs if client.ledger.runs.status(run_id) == "failed"]

        again = client.retry(failed).result(40)
        shown = shown_by_runs_show(cantata_stack, run)

        assert again.status == "succeeded"
        assert receiver.messages[-1].id == failed
        assert f"webhook: end of run {run.run_id} to ops: failed (submit runs show {failed})" in shown
        client.redis.delete(*client.redis.keys(f"*:run:{failed}*"))
        assert failed not in shown_by_runs_show(cantata_stack, run), "an expired one is left out"
        assert client.ledger.redis.hgetall(f"{shard_key(client.redis, shard_of(failed))}:tenants") == {}


def test_a_test_message_is_posted_once_and_its_answer_shown(cantata_stack: KillableStack) -> None:
    with receiving(200, 404) as receiver:
        client = client_of(cantata_stack, receiver)

        taken, refused = client.test_webhook("ops").result(40), client.test_webhook("ops").result(40)

    assert (taken.status, taken.output) == ("succeeded", {"posted": True, "status": 200})
    assert refused.error is not None
    assert refused.error.message == "ops answered 404"
    assert [message.content["type"] for message in receiver.messages] == ["test", "test"]


@pytest.mark.slow("another process takes the sweep over")
def test_a_message_is_sent_though_the_sweeper_dies(cantata_stack: KillableStack) -> None:
    with receiving() as receiver:
        client = client_of(cantata_stack, receiver)
        run = client.submit_chain(WAIT)
        until(lambda: receiver.messages, "the message that it waits")
        receiver.messages.clear()

        with cantata_stack.kill_at("outbox-replied") as fault:
            assert run.cancel() == "cancelled"  # no worker ended it, so only a sweep creates what posts it
            until(lambda: fault.happened, "the death")
            until(lambda: receiver.messages, "the message")

    assert receiver.messages[0].content["data"]["status"] == "cancelled"


MANY_WAITS = 30


@pytest.mark.timeout(400)
@pytest.mark.slow("a stack of its own, whose slots for messages are all occupied")
def test_messages_to_hosts_that_hang_delay_no_turn_and_no_message_of_another_tenant(
    tmp_path: Path, models: ScriptedModels
) -> None:
    names = [f"w{number}" for number in range(MANY_WAITS)]
    waits: list[JsonValue] = [{"node_id": name, "kind": "wait"} for name in names]
    fan: JsonValue = {"node_id": "fan", "kind": "proc", "name": "say", "next_node": [*names]}
    many: dict[str, JsonValue] = {"entry_node": "fan", "nodes": [fan, *waits]}
    with ExitStack() as stack:
        dead = [stack.enter_context(receiving(*[HANG] * 1000, host=f"127.0.0.{number}")) for number in range(2, 8)]
        living = stack.enter_context(receiving())
        hooks = {each.host: Webhook(url=each.url, secret_env=SECRET, allow_private=True) for each in dead}
        hooks["ops"] = Webhook(url=living.url, secret_env=SECRET, allow_private=True, on=["end"], labels=ACME)
        config = definitions().model_copy(update={"webhooks": hooks})
        client = stack.enter_context(Client.embedded(tmp_path / "stack", config=config, agents=1, tools=1))
        models.script([{"reply": "hello"}])
        assert client.submit_turn("warm", agent="ann").result(40).output == "hello"

        run = client.submit_chain(many, labels={"tenant": "evil"}, webhooks=[f"wait={each.host}" for each in dead])
        until(
            lambda: sum(len(each.messages) for each in dead) >= TENANT_POSTS, "as many wait for hosts that hang as may"
        )
        until(
            lambda: len(run.record().webhook_runs) == 100, "the others wait in the queue"
        )  # as many of them are named
        turns = [client.submit_turn(f"number {number}", agent="ann", labels=ACME) for number in range(20)]

        assert {turn.result(20).output for turn in turns} == {"hello"}
        until(partial(living.has, 20), "the messages of the other tenant, before the hundreds of the first")
        assert sum(len(each.messages) for each in dead) < 100, "they overtook those"
        assert run.status() == "waiting"
        models.script([])


def test_messages_come_after_all_connections_were_cut(cantata_stack: KillableStack) -> None:
    with receiving() as receiver:
        client = client_of(cantata_stack, receiver)
        for number in range(1, 3):
            run = client.submit_chain(WAIT)
            until(partial(receiver.has, number), "the message that it waits")
            client.redis.client_kill_filter(_type="normal", skipme=True)
        assert run.status() == "waiting"
        run.cancel()
        until(lambda: len(receiver.messages) == 3, "the message that it ended")


@pytest.mark.slow("four messages wait ten seconds for an answer")
def test_messages_beyond_those_that_a_host_gets_at_once_are_tried_again_and_no_attempt_of_theirs_failed(
    cantata_stack: KillableStack,
) -> None:
    with receiving(*[HANG] * 2 * HOST_POSTS) as receiver:  # of two agents workers
        client = client_of(cantata_stack, receiver)
        names = [f"w{number}" for number in range(12)]
        waits: list[JsonValue] = [{"node_id": name, "kind": "wait"} for name in names]
        run = client.submit_chain({"entry_node": "say", "nodes": [{**SAY, "next_node": [*names]}, *waits]})

        until(lambda: len({message.id for message in receiver.messages}) == len(names), "all of them")

        posting = [client.ledger.reader.records(run_id, ["deliver"])["deliver"] for run_id in run.record().webhook_runs]
        assert sum(step.failures == 0 for step in posting) >= len(names) - 2 * HOST_POSTS
        assert any(step.attempt > 1 and step.failures == 0 for step in posting), "it could not begin at once"
