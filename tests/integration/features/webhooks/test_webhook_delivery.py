"""The step that posts to a webhook: with a real ledger and a real HTTP server, without worker processes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cantata.client.client import Client
from cantata.engine.fleet import load, registry
from cantata.engine.fleet.registry import Worker
from cantata.engine.start import definitions_from, plan_run
from cantata.errors import ConfigError, MustWait, StepError
from cantata.features.batches.batches import batch_target
from cantata.features.batches.rows import BatchRow
from cantata.features.webhooks import webhooks
from cantata.flows.definitions import Alert, Definitions, Webhook
from cantata.flows.graph import Outcome
from cantata.flows.wire import WebhookRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import SHARDS, shard_of
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from cantata.values import ErrorInfo
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps import decisions
from cantata_workers.tools import webhook_post
from cantata_workers.tools.webhook_post import HOST_POSTS
from cantata_workers.tools.webhooks import webhook_deliver
from tests.integration.receiver import HANG, Receiver, receiving
from tests.integration.state.play import Play, work
from tests.integration.test_threads import url_of

SECRET = "a secret of sixteen"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_WEBHOOK_SECRET", SECRET)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def definitions(receiver: Receiver, *, alerts: dict[str, Alert] | None = None, **more: Any) -> Definitions:
    return Definitions(
        webhooks={"ops": Webhook(url=f"{receiver.url}/hook", allow_private=True, **more)}, alerts=alerts or {}
    )


class Delivery:
    """A run that posts, and a worker that executes its steps when the test says so."""

    def __init__(self, ledger: Ledger, run_id: str) -> None:
        self.play = Play(ledger, run_id)
        kind, request, digest, _ = ledger.runs.request_of(run_id)
        self._definitions = definitions_from(ledger.runs.definitions(run_id, digest))
        if ledger.reader.records(run_id, ["@start"])["@start"].state == "sent":
            self.play.commit(self.play.begin("@start"), outcome=plan_run(kind, json.loads(request), self._definitions))

    def attempt(self) -> Outcome | StepError:
        """Execute the step, and record a failure as one that is tried again."""
        begun = self.play.begin("deliver")
        process = cast(Process, SimpleNamespace(ledger=self.play.ledger, definitions=lambda *_: self._definitions))
        try:
            outcome: Outcome = asyncio.run(cast(Any, webhook_deliver(StepContext(begun, process))))
        except StepError as error:
            info = ErrorInfo(code=error.code, message=str(error))
            self.play.commit(
                begun, outcome=Outcome(status="retry" if error.retryable else "failed", error=info, retry_in_s=9e6)
            )
            return error
        self.play.commit(begun, outcome=outcome)
        return outcome

    def again(self) -> Outcome | StepError:
        """Let the pause pass, and execute it again."""
        self.play.come_due("retry", "deliver")
        return self.attempt()


def deliveries(
    ledger: Ledger, known: Definitions, run_id: str = "run", *, on: str = "end", status: str = "succeeded", **more: Any
) -> list[str]:
    """End a run; return the runs that post it."""
    text = known.model_dump_json(exclude_defaults=True, by_alias=True)
    play = Play(
        ledger,
        run_id,
        text="hello",
        definitions=text,
        webhooks=[{"to": "ops", "on": {on: True}, **more}],
        labels={"tenant": "acme"},
    )
    play.plan(work("a", work="agents:ann"), terminals=("a",))
    if status == "succeeded":
        play.do("a", "the answer")
    else:
        play.fail("a")
    ledger.outbox.create(shard_of(run_id), "acme", range(SHARDS))
    return list(ledger.reader.read(run_id).webhook_runs)


def failure(found: Outcome | StepError) -> StepError:
    assert isinstance(found, StepError), found
    return found


def test_a_message_has_the_result_and_a_signature(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_GATEWAY_URL", "https://runs.example.org/")
    (run_id,) = deliveries(ledger, definitions(receiver))
    delivery = Delivery(ledger, run_id)

    outcome = delivery.attempt()

    assert isinstance(outcome, Outcome)
    assert (outcome.output, delivery.play.status) == ({"posted": True, "status": 200}, "succeeded")
    (message,) = receiver.messages
    assert message.is_signed_with(SECRET)
    assert not message.is_signed_with(SECRET + "!")
    assert (message.id, message.headers["content-type"]) == (run_id, "application/json")
    data = message.content["data"]
    assert message.content["type"] == "run.end"
    assert (data["run_id"], data["tenant"], data["kind"], data["status"]) == ("run", "acme", "turn", "succeeded")
    assert (data["result"]["output"], data["link"]) == ("the answer", "https://runs.example.org/runs/run")


def test_a_message_may_have_only_a_link(ledger: Ledger, receiver: Receiver) -> None:
    (run_id,) = deliveries(ledger, definitions(receiver, body="link"))

    Delivery(ledger, run_id).attempt()

    data = receiver.messages[0].content["data"]
    assert ("result" in data, data["link"], data["status"]) == (False, "/runs/run", "succeeded")


@pytest.mark.parametrize("bytes_each", [150_000, 4_000_000])
def test_a_result_that_is_too_large_for_a_message_is_read_in_part(
    ledger: Ledger, receiver: Receiver, bytes_each: int
) -> None:
    names = [f"n{number}" for number in range(8)]
    text = definitions(receiver).model_dump_json(exclude_defaults=True, by_alias=True)
    request = {"entry_node": "n0", "nodes": [{"node_id": name, "kind": "tool", "name": "t"} for name in names]}
    ledger.runs.accept(
        "run",
        kind="chain",
        request=json.dumps(request),
        definitions=text,
        timeout_s=60,
        max_attempts=3,
        max_steps=100,
        webhooks=[{"to": "ops", "on": {"end": True}}],
    )
    play = Play(ledger, "run")
    play.plan(*(work(name) for name in names), terminals=tuple(names))
    for number, name in enumerate(names):
        play.do(name, str(number) * bytes_each)
    ((run_id, _),) = ledger.outbox.create(shard_of("run"), "", range(SHARDS)).ready
    delivery, before = Delivery(ledger, run_id), int(ledger.redis.info("stats")["total_net_output_bytes"])

    delivery.attempt()

    read = int(ledger.redis.info("stats")["total_net_output_bytes"]) - before
    data = receiver.messages[0].content["data"]
    assert ("result" in data, data["note"]) == (False, "the result is larger than 1 MB; read it at the link")
    assert read < 2_000_000 + bytes_each, "an output more than what shows that it is too large, or a piece of them"


def test_a_receiver_that_is_ill_gets_the_same_message_again(ledger: Ledger) -> None:
    with receiving(500, 503, 429) as receiver:
        (run_id,) = deliveries(ledger, definitions(receiver))
        delivery = Delivery(ledger, run_id)

        errors = [failure(delivery.attempt()), failure(delivery.again()), failure(delivery.again())]
        assert isinstance(delivery.again(), Outcome)

    assert [str(error) for error in errors] == ["ops answered 500", "ops answered 503", "ops answered 429"]
    pauses = [error.retry_after_s or 0 for error in errors]
    assert all(5 * 2**number / 2 <= pause <= 5 * 2**number for number, pause in enumerate(pauses)), pauses
    assert {message.id for message in receiver.messages} == {run_id}
    assert len({message.body for message in receiver.messages}) == 1


def test_a_receiver_that_wants_no_more_is_left_alone(ledger: Ledger) -> None:
    with receiving(410) as receiver:
        (run_id,) = deliveries(ledger, definitions(receiver))
        delivery = Delivery(ledger, run_id)

        error = failure(delivery.attempt())

    assert (error.code, error.retryable) == ("webhook_gone", False)


def test_a_redirect_is_not_followed(ledger: Ledger) -> None:
    with receiving(302) as receiver:
        (run_id,) = deliveries(ledger, definitions(receiver))

        error = failure(Delivery(ledger, run_id).attempt())

    assert "302; redirects are not followed" in str(error)
    assert error.retryable
    assert len(receiver.messages) == 1


def test_a_receiver_that_hangs_is_waited_for_only_so_long(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_post, "POST_S", 0.3)
    with receiving(HANG) as receiver:
        (run_id,) = deliveries(ledger, definitions(receiver))

        error = failure(Delivery(ledger, run_id).attempt())

    assert (str(error), error.retryable) == ("ops: no answer in 0.3 s", True)


@pytest.mark.parametrize(("age_s", "most_s"), [(0, 1), (40, 10), (3600, 60)])
def test_without_a_place_it_leaves_its_slot_reads_nothing_and_comes_back_later_the_older_it_is(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, age_s: int, most_s: int
) -> None:
    known = definitions(receiver)
    (run_id,) = deliveries(ledger, known)
    now = clock.now() + age_s
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(
        "cantata_workers.tools.webhooks._message", lambda *_: pytest.fail("the result of its run was read")
    )

    with ExitStack() as places:
        for _ in range(HOST_POSTS):
            places.enter_context(webhook_post.place(known.webhooks["ops"], tenant="another"))
        with pytest.raises(MustWait, match=r"posts 4 messages to 127\.0\.0\.1 already") as wait:
            Delivery(ledger, run_id).attempt()

    assert most_s / 2 <= wait.value.seconds <= most_s * 1.1
    assert not wait.value.is_queued, "no limit of models would wake it"
    assert receiver.messages == []


def test_after_a_day_it_is_given_up(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving(500) as receiver:
        (run_id,) = deliveries(ledger, definitions(receiver))
        now = clock.now()
        monkeypatch.setattr(clock, "now", lambda: now + 24 * 3600)

        error = failure(Delivery(ledger, run_id).attempt())

    assert not error.retryable
    assert f"given up after 24 h: `submit runs retry {run_id}`" in str(error)


def test_the_connection_goes_to_the_address_that_was_checked(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "192.0.2.1"  # another one at the second look-up
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]

    known = definitions(receiver)
    port = receiver.url.rpartition(":")[2]
    hook = known.webhooks["ops"].model_copy(update={"url": f"http://hooks.example.org:{port}/hook"})
    (run_id,) = deliveries(ledger, known.model_copy(update={"webhooks": {"ops": hook}}))
    delivery = Delivery(ledger, run_id)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve(str(host)))

        assert isinstance(delivery.attempt(), Outcome)

    assert "hooks.example.org" in asked[:1]
    assert receiver.messages[0].headers["host"] == f"hooks.example.org:{port}"


def test_a_url_of_a_run_may_not_be_private(ledger: Ledger, receiver: Receiver) -> None:
    (run_id,) = deliveries(ledger, Definitions(), to=receiver.url)

    error = failure(Delivery(ledger, run_id).attempt())

    assert (error.code, error.retryable, receiver.messages) == ("address_refused", False, [])


def test_a_worker_without_the_secret_leaves_the_message_to_be_tried_again(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = deliveries(ledger, definitions(receiver))
    monkeypatch.delenv("CANTATA_WEBHOOK_SECRET")

    error = failure(Delivery(ledger, run_id).attempt())

    assert error.retryable
    assert "CANTATA_WEBHOOK_SECRET is not set" in str(error)


def test_a_message_of_a_run_that_is_gone_says_so(ledger: Ledger, receiver: Receiver) -> None:
    (run_id,) = deliveries(ledger, definitions(receiver))
    delivery = Delivery(ledger, run_id)
    ledger.redis.delete(*ledger.redis.keys("*:run:run"), *ledger.redis.keys("*:run:run:*"))
    try:
        delivery.attempt()
    finally:
        ledger.redis.flushdb()

    data = receiver.messages[0].content["data"]
    assert (data["status"], "result" in data, "not known here" in data["note"]) == ("succeeded", False, True)


def test_an_alert_of_failed_runs_comes_once_when_so_many_have_failed(ledger: Ledger, receiver: Receiver) -> None:
    known = definitions(receiver, alerts={"broken": Alert(on="failed_runs", webhook="ops", count=3, within_s=600)})

    def fail(number: int) -> Delivery:
        (run_id,) = deliveries(ledger, known, f"run{number}", on="failure", status="failed", alert="broken")
        return Delivery(ledger, run_id)

    outputs = [cast(Outcome, fail(number).attempt()).output for number in range(5)]

    assert [cast(dict[str, bool], output)["posted"] for output in outputs] == [False, False, True, False, False]
    (message,) = receiver.messages
    assert (message.content["type"], message.content["data"]["alert"]) == ("alert", "broken")
    assert message.content["data"]["run_id"] == "run2"


def test_an_alert_whose_receiver_is_ill_is_not_lost_when_its_time_is_over(ledger: Ledger) -> None:
    with receiving(500) as receiver:
        known = definitions(receiver, alerts={"broken": Alert(on="failed_runs", webhook="ops", within_s=60)})
        (run_id,) = deliveries(ledger, known, on="failure", status="failed", alert="broken")
        delivery = Delivery(ledger, run_id)
        failure(delivery.attempt())
        assert ledger.redis.delete(*ledger.redis.keys("*:alerts:*")) == 2

        assert cast(Outcome, delivery.again()).output == {"posted": True, "status": 200}


def test_an_alert_that_is_raised_twice_for_the_same_is_posted_once(ledger: Ledger, receiver: Receiver) -> None:
    known = definitions(receiver, alerts={"code": Alert(on="mixed_code", webhook="ops")})
    text = known.model_dump_json(exclude_defaults=True)

    def raise_(key: str) -> list[str]:
        return webhooks.raise_alerts(
            ledger, known, text, "mixed_code", key=key, message="mixed", data={"code": "m"}, tenant="acme"
        )

    assert raise_("one") == raise_("one") != raise_("two")
    Delivery(ledger, raise_("one")[0]).attempt()
    (message,) = receiver.messages
    assert message.content["data"] == {
        "message": "mixed (alert 'code')",
        "tenant": "acme",
        "code": "m",
        "alert": "code",
    }
    assert webhooks.raise_alerts(ledger, known, text, "failed_runs", key="x", message="", data={}) == []


def test_the_end_of_a_batch_is_posted_once_with_its_counts(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_GATEWAY_URL", "https://cantata.example.com/")
    client = Client(url_of(ledger.redis), config=definitions(receiver))
    with pytest.raises(ConfigError, match="no webhook 'opps' for this run; did you mean 'ops'"):
        client.batches.open("rows", batch_target(agent="ann"), webhooks=["opps"])
    batch = client.batches.open("rows", batch_target(agent="ann"), webhooks=["ops"])
    client.batches.deliver(batch, [BatchRow(row=0, status="succeeded")])
    assert client.runs() == []

    client.batches.deliver(batch, [BatchRow(row=1, status="failed")], total=2)
    client.batches.deliver(batch, [BatchRow(row=1, status="failed")], total=2)
    client.batches.open("rows", batch_target(agent="ann"), webhooks=["ops"])

    (run,) = client.runs()
    Delivery(ledger, run.run_id).attempt()
    (message,) = receiver.messages
    content = message.content
    assert (content["type"], content["data"]["link"]) == ("batch.end", "https://cantata.example.com/batches/rows")
    expected = {"batch": "rows", "state": "done", "total": 2, "delivered": 2, "failed": 1, "round": 0}
    assert content["data"].items() >= expected.items()
    totals = load.measure(ledger.redis).totals
    assert {
        name: totals.get(name) for name in ("batches:done", "batches:running", "rows:failed", "rows:succeeded")
    } == {
        "batches:done": 1,
        "batches:running": 0,
        "rows:failed": 1,
        "rows:succeeded": 1,
    }
    client.close()


def test_mixed_code_is_reported_when_it_has_lasted(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = definitions(receiver, alerts={"code": Alert(on="mixed_code", webhook="ops", within_s=600)})
    play = Play(ledger, definitions=known.model_dump_json(exclude_defaults=True))
    process = cast(Process, SimpleNamespace(ledger=ledger, definitions=lambda *_: known))
    context = StepContext(play.begin("@start"), process)
    fleet = [
        Worker(
            name=f"w{number}",
            queues=("tools",),
            concurrency=1,
            version="1",
            code=(f"steps@{number}",),
            pid=1,
            host="h",
            started_at=0.0,
        )
        for number in range(2)
    ]
    now = clock.now()

    def look(after_s: float, workers: list[Worker]) -> list[str]:
        monkeypatch.setattr(clock, "now", lambda: now + after_s)
        monkeypatch.setattr(registry, "workers", lambda _: workers)
        monkeypatch.setattr(decisions, "_looked_at", {})
        decisions.check_code(context)
        return [run.run_id for run in listing.iterate(ledger, RunFilter(None, (), "webhook", ""))]

    assert look(0, fleet[:1]) == look(0, fleet) == look(599, fleet) == []
    (raised,) = look(601, fleet)
    assert look(900, fleet) == [raised]
    Delivery(ledger, raised).attempt()
    assert "steps: 0 by w0, 1 by w1" in receiver.messages[0].content["data"]["code"]


def test_a_request_without_an_id_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="id"):
        WebhookRequest.model_validate({"text": "t", "to": "ops", "event": "end", "at_ms": 1})
