"""JSON that passes through the ledger's scripts comes out equal to what came in, wherever somebody reads it."""

from __future__ import annotations

import itertools
import json
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cantata.client.run_export import export
from cantata.features.forks import fork_store, rewind
from cantata.features.inbox import inbox
from cantata.features.inbox.inbox import InboxFilter
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.sessions.sessions import Sessions
from cantata.flows.definitions import SessionSettings
from cantata.flows.graph import Edge, Graph, ItemSteps, Outcome, Step
from cantata.flows.provider_batches import CREATE
from cantata.flows.waits import InboxItem
from cantata.flows.wire import ProviderBatchRequest
from cantata.ledger import conversations
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import shard_of
from cantata.ledger.runs import event_log
from cantata.values import ErrorInfo, JsonValue, Usage
from tests.examples import FEWER
from tests.integration.features.batches.test_provider_batches import planned
from tests.integration.features.forks.test_forks import near
from tests.integration.features.memory.test_memory import JSON
from tests.integration.features.schedules.test_schedules import Scene
from tests.integration.state.play import Play, failed, row, wait, work

HOUR_S = 3600.0


def nested(levels: int) -> JsonValue:
    """An empty list in so many others."""
    value: JsonValue = []
    for _ in range(levels):
        value = [value]
    return value


AWKWARD: dict[str, JsonValue] = {
    "order": 1234567890123456789, "negative": -(2**63), "huge": 10**40, "zero": 0, "amount": 1234567.12345678, "tenth": 0.1,
    "third": 1 / 3, "large": 1e300, "tiny": 5e-324, "minus": -0.0, "whole": 3.0, "no items": [], "no members": {}, "lists": [[], {}, [[]]],
    "text": 'a/b "c" \\ \x00 \x7f é 日本 🙂 \u2028 }],{["', 'na"me\\': None, "1": [None, None], "true": True, "deep": nested(60),
}  # fmt: skip
"""Values that Lua's JSON library changes, and texts that a reader of JSON text may mistake for its signs."""


def text_of(value: object) -> str:
    """JSON text, equal only for equal values: 3 is not 3.0, and -0.0 is not 0."""
    return json.dumps(value, sort_keys=True)


def same(found: object, value: object) -> None:
    assert text_of(found) == text_of(value)


def event(play: Play, kind: str, step_id: str | None = None) -> Any:
    """The last event of a type, as clients get it."""
    events = event_log.read(play.ledger.redis, play.run_id, most=10_000)
    return [each for each in events if each.type == kind and step_id in (None, each.step)][-1]


def item(ledger: Ledger) -> InboxItem:
    (found,) = inbox.find_page(ledger, InboxFilter(), most=10).items
    return found


def asks(step_id: str, **options: JsonValue) -> Step:
    return wait(step_id, timeout_s=HOUR_S, params={"asks": AWKWARD, "wait": {"question": AWKWARD["text"], **options}})


def test_a_wait_shows_its_question_as_it_was_asked(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(asks("sure"))

    waiting = event(play, "waiting")
    same(waiting.asks, AWKWARD)
    same(waiting.question, AWKWARD["text"])
    same(item(ledger).context, AWKWARD)
    same(play.step("sure").spec.params["asks"], AWKWARD)


@pytest.mark.parametrize(
    "params",
    [
        {"asks": AWKWARD, "wait": {"question": "Pay?", "who": ["ann"]}},
        {"asks": AWKWARD},
        {"wait": {"question": AWKWARD["text"]}, "other": {"asks": 1, "wait": {"question": "no"}}},
        {"wait": {"who": ["ann"]}},
        {},
    ],
    ids=["both", "asks", "question", "neither", "no parameters"],
)
@pytest.mark.parametrize("is_older", [False, True], ids=["new", "of the version before"])
def test_a_wait_that_the_version_before_planned_shows_it_too(
    ledger: Ledger, params: dict[str, Any], is_older: bool
) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("sure", params=params), edges=row("a", "sure"))
    if is_older:
        spec = json.loads(cast(str, ledger.redis.hget(f"{play.shard}:run:run:steps", "sure")))
        spec.pop("waiting", None)
        ledger.redis.hset(f"{play.shard}:run:run:steps", "sure", json.dumps(spec, ensure_ascii=False))

    play.do("a")

    waiting = event(play, "waiting")
    same(waiting.asks, params.get("asks"))
    same(waiting.question, params.get("wait", {}).get("question", ""))


def test_a_signal_arrives_as_it_was_sent_early_or_not(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a"),
        wait("late"),
        wait("early"),
        work("b", reads={"x": "late", "y": "early"}),
        edges=(*row("a", "early", "b"), *row("late", "b")),
    )

    ledger.steps.signal("run", "late", AWKWARD, by='ann "é"')
    ledger.steps.signal("run", "early", AWKWARD, by='ann "é"')
    play.do("a")

    begun = play.begin("b")
    same(begun.inputs, {"x": AWKWARD, "y": AWKWARD})
    assert [play.step(step_id).info["answered_by"] for step_id in ("late", "early")] == ['ann "é"'] * 2


def test_values_pass_from_step_to_step(ledger: Ledger) -> None:
    play = Play(ledger)
    items = ItemSteps(like="like", prefix="item", given=(AWKWARD, []), window=1)
    graph = Graph(
        steps=(work("a", params=AWKWARD, given=AWKWARD), work("map", reads={"x": "a"}), work("late", timeout_s=HOUR_S)),
        edges=row("a", "map"),
    )
    play.do("@start", fragment=graph)
    begun = play.begin("a")
    same([begun.given, begun.spec.params], [AWKWARD, AWKWARD])
    play.commit(begun, AWKWARD)
    large: JsonValue = {"of": AWKWARD, "long": "é" * 40_000}
    play.do(
        "map",
        large,
        fragment=Graph(
            steps=(work("like", window="map"), work("join")),
            edges=(Edge(source="like", target="join"),),
            items=items,
            exit="join",
        ),
    )

    first = play.begin("item/0")
    same(first.given, AWKWARD)
    play.commit(first, AWKWARD)
    same(play.begin("item/1").given, [])
    same([play.output("a"), play.output("map"), play.output("item/0")], [AWKWARD, large, AWKWARD])


def test_how_a_step_stands_survives_losses_refusals_and_reminders(ledger: Ledger) -> None:
    play = Play(ledger, max_attempts=2)
    play.plan(work("a"), asks("sure", remind_after_s=1))
    record = {
        "error": {"code": "broke", "message": "it broke"},
        "detail": AWKWARD,
        "lost": [],
        "order": 1234567890123456789,
    }
    ledger.steps.commit(
        play.begin("a"), Outcome(status="retry"), output="null", info=cast("dict[str, JsonValue]", record)
    )
    play.sweep()

    play.lose_lease(play.begin("a"))
    lost = dict(play.step("a").info)
    assert [each["worker"] for each in cast("list[dict[str, str]]", lost.pop("lost"))] == ["worker"]
    same(lost, {name: value for name, value in record.items() if name != "lost"})
    begun = play.begin("a")
    ledger.steps.refuse("run", "a", begun.attempt, begun.owner, str(AWKWARD["text"]))
    refused = dict(play.step("a").info)
    same(refused.pop("refused"), {"worker": AWKWARD["text"]})
    assert refused.pop("lost")
    same(refused, lost)
    same(event(play, "refused").message, AWKWARD["text"])
    play.lose_lease(play.begin("a", owner="other"))

    poisoned = dict(play.step("a").info)
    assert poisoned.pop("error")["code"] == event(play, "failed").error.code == "poison"  # type: ignore[index,call-overload]  # an object
    assert len(cast("list[object]", poisoned.pop("lost"))) == 2
    same(poisoned, {"detail": AWKWARD, "order": 1234567890123456789})
    assert play.status == "failed"


def test_a_parked_outcome_and_an_escalation_change_nothing_else(ledger: Ledger) -> None:
    labels = {"tenant": "acme", "note": str(AWKWARD["text"]), "number": "1234567890123456789"}
    play = Play(ledger, labels=labels)
    play.plan(work("once", at_most_once=True), asks("sure", escalate_after_s=1, escalate_to=["é/bo"], remind_after_s=1))
    ledger.steps.commit(play.begin("once"), Outcome(status="retry"), output="null", info={"detail": AWKWARD})
    play.sweep()
    play.lose_lease(play.begin("once"))
    play.come_due("remind", "sure")
    play.come_due("escalate", "sure")
    ledger.steps.signal("run", "once", AWKWARD, by="ann")

    info = play.step("once").info
    same([info["detail"], info["answered_by"]], [AWKWARD, "ann"])
    assert {"reminded_at_ms", "escalated_at_ms"} <= play.step("sure").info.keys()
    same(ledger.reader.read("run").labels, {**labels, "escalated_to": "é/bo"})
    same(event(play, "escalated").to, ["é/bo"])
    same(play.output("once"), AWKWARD)


@settings(max_examples=100 // FEWER, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(info=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON), value=JSON)
def test_any_values_pass(ledger: Ledger, info: dict[str, JsonValue], value: JsonValue) -> None:
    ledger.redis.flushdb()
    play = Play(ledger)
    play.plan(work("a"), wait("sure", params={"asks": value, "wait": {"question": "Sure?"}}))
    ledger.steps.commit(play.begin("a"), Outcome(status="retry"), output="null", info=info)
    play.sweep()
    play.lose_lease(play.begin("a"))

    found = dict(play.step("a").info)
    assert found.pop("lost")
    same(found, {name: each for name, each in info.items() if name not in ("lost", "refused")})
    same(event(play, "waiting").asks, value)


def test_a_wait_whose_time_passes_takes_its_default(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("sure", timeout_s=HOUR_S, given=AWKWARD))

    play.come_due("wait", "sure")

    same(play.output("sure"), AWKWARD)


def test_a_failure_and_warnings_are_told_as_they_were(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", on_error="skip"))
    play.commit(play.begin("a"), outcome=Outcome(output=1, warnings=(str(AWKWARD["text"]),)))
    info: dict[str, JsonValue] = {"error": {"code": "broke", "message": str(AWKWARD["text"])}, "detail": AWKWARD}
    ledger.steps.commit(play.begin("b"), failed(), output="null", info=info)

    same(event(play, "warning", "a").message, AWKWARD["text"])
    same(event(play, "failed", "b").error.message, AWKWARD["text"])
    same(play.step("b").info, info)


def test_a_fork_asks_and_knows_the_same(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a", given=AWKWARD),
        asks("sure"),
        work("b", reads={"x": "a"}),
        edges=row("a", "sure", "b"),
        terminals=("b",),
    )
    play.do("a", AWKWARD)
    ledger.steps.signal("run", "sure", AWKWARD)
    play.commit(play.begin("b"), outcome=failed())
    run_id, fork = near("run"), rewind.fork(fork_store.read(ledger, "run"), "sure")

    fork_store.make(ledger, run_id, fork, request=AWKWARD, given=AWKWARD, labels={"note": str(AWKWARD["text"])})

    anew = Play.__new__(Play)
    anew.ledger, anew.run_id, anew.shard = ledger, run_id, play.shard
    same(event(anew, "waiting").asks, AWKWARD)
    same(item(ledger).context, AWKWARD)
    record = ledger.reader.read(run_id)
    same([json.loads(record.request), record.labels], [AWKWARD, {"note": AWKWARD["text"]}])
    same([anew.output("a"), anew.output("@start")], [AWKWARD, AWKWARD])
    ledger.steps.signal(run_id, "sure", AWKWARD)
    same(anew.begin("b").inputs, {"x": AWKWARD})


def test_an_export_has_the_values_as_they_were(ledger: Ledger) -> None:
    play = Play(ledger)
    ask = work("a", kind="tool.call", work="tools:pay", given=AWKWARD, params={"input": AWKWARD})
    play.plan(ask, asks("sure"), edges=row("a", "sure"), terminals=("a",))
    play.do("a", AWKWARD)
    ledger.steps.signal("run", "sure", AWKWARD)

    text = "".join(export(ledger, ledger.reader.read("run"), event_log.read(ledger.redis, "run", most=100)))

    steps = {step["step"]: step for step in json.loads(text)["steps"]}
    same([steps["a"]["output"], steps["a"]["given"], steps["sure"]["output"]], [AWKWARD] * 3)


def test_the_run_that_cancels_a_batch_names_it_as_it_is_named(ledger: Ledger) -> None:
    play = planned(ledger)
    play.do(CREATE, "1234567890123456789/é")

    ledger.runs.cancel(play.run_id)

    (other,) = (
        run_id
        for run_id in cast("list[str]", ledger.redis.zrange(f"{play.shard}:runs", 0, -1))
        if run_id != play.run_id
    )
    request = ProviderBatchRequest.model_validate_json(ledger.runs.request_of(other)[1])
    assert (request.batch, request.agent, request.cancels) == ("1234567890123456789/é", "ann", play.run_id)


def test_a_conversation_has_the_texts_as_they_were(ledger: Ledger) -> None:
    session = conversations.run_session("", "chat", SessionSettings())
    assert session is not None
    shard = conversations.shard_of_session(session.name)
    ids = (run_id for number in itertools.count() if shard_of(run_id := f"run{number}") == shard)
    for run_id, output in zip(ids, (AWKWARD["text"], AWKWARD), strict=False):
        play = Play(ledger, run_id, text=str(AWKWARD["text"]), session=session)
        play.plan(work("answer", work="agents:ann"), terminals=("answer",))
        play.do("answer", output)

    _, first, _, second = Sessions(ledger).history("chat")
    same(first.content, AWKWARD["text"])
    same(json.loads(second.content), AWKWARD)


def test_costs_add_up_exactly(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(*(work(f"a{n}") for n in range(12)))
    for n, cost in enumerate([0.1] * 10 + [1e-7, 2.5e-05]):
        play.commit(
            play.begin(f"a{n}"),
            outcome=Outcome(output=n, usage=Usage(cost_usd=cost, input_tokens=2**40, model_calls=1)),
        )

    usage = ledger.reader.read("run").usage
    assert usage.cost_usd == pytest.approx(1.0000251, rel=1e-15)
    assert usage.input_tokens == 12 * 2**40


def test_a_time_limit_is_named_with_all_its_digits(ledger: Ledger) -> None:
    play = Play(ledger, timeout_s=1234567.891)
    play.plan(work("a"))

    play.come_due("deadline")

    error = ledger.reader.read("run").error
    assert error == ErrorInfo(code="timeout", message="the run did not end within its 1234567.891 s")


def test_memory_keeps_values(ledger: Ledger) -> None:
    bank = MemoryStore(ledger)
    bank.store_memory("one", AWKWARD)
    several: list[JsonValue] = [AWKWARD, [], {}]
    for each in several:
        bank.append("many", each)

    same(bank.retrieve_memory("one"), AWKWARD)
    same(bank.retrieve_memory("many"), several)


def test_a_schedule_starts_runs_with_what_it_was_given(ledger: Ledger) -> None:
    scene = Scene(ledger)
    given = {**{name: value for name, value in AWKWARD.items() if name != "text"}, "day": "{date}"}
    request = {
        "entry_node": "sure",
        "nodes": [{"node_id": "sure", "kind": "wait", "input": {"order": AWKWARD["order"], "no items": [], "deep": AWKWARD["deep"]}}],
    }  # fmt: skip
    scene.schedules.create(
        "daily", {"every": "1h", "chain": request, "input": given, "labels": {"note": "1234567890123456789 é"}}
    )

    scene.pass_time()

    (run_id,) = scene.runs()
    started = ledger.reader.read(run_id)
    sent = json.loads(started.request)
    same(sent["initial_input"], {**given, "day": sent["initial_input"]["day"]})
    same(sent["nodes"][0]["input"], request["nodes"][0]["input"])  # type: ignore[index]  # a list of objects
    same(started.labels["note"], "1234567890123456789 é")
    scene.client.close()
