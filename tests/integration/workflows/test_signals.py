"""Repeated signals, and workflows that begin again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.errors import ConfigError
from cantata.ledger.scripts import ScriptCaller
from tests.integration.workflows.conftest import PATIENCE_S
from tests.waiting import until


def test_repeated_signals_come_in_order_and_none_is_lost(client: Client) -> None:
    run = client.submit_workflow("orders", {"until": "end"})
    values = [*range(30), "end"]

    answers = Counter(run.signal("order", value) for value in values)

    assert run.result(PATIENCE_S).raise_for_status().final_output == values
    assert answers.keys() <= {"taken", "kept"}


def test_a_signal_behind_a_wait_that_is_over_is_kept_for_the_next_one(client: Client) -> None:
    run = client.submit_workflow("orders", {"until": "end"})
    for value in ("one", "two"):
        until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
        assert run.signal("order", value) == "taken"
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the third wait")
    assert run.signal("orders/0.wait/order", "again") == "over", "a step that is named by its id has its value"
    assert run.signal("order", "end") == "taken"

    assert run.result(PATIENCE_S).final_output == ["one", "two", "end"]


def test_a_signal_that_comes_while_the_code_sleeps_or_waits_for_another_is_kept_for_its_wait(client: Client) -> None:
    run = client.submit_workflow("naps", {})
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the sleep")

    assert run.signal("go", "early") == "kept"
    client.stack.skip(3600)  # type: ignore[attr-defined]
    until(lambda: [step for step in run.waiting_steps() if step.endswith("wait/first")], "the first wait")
    assert run.signal("go", "earlier than its second wait") == "kept"
    assert run.signal("first", 1) == "taken"

    assert run.result(PATIENCE_S).raise_for_status().final_output == [1, "early", "earlier than its second wait"]


@pytest.mark.parametrize("waits", [True, False])
def test_a_signal_whose_reply_is_lost_counts_once(client: Client, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    run = client.submit_workflow("orders", {"until": "end"})
    if waits:
        until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
    execute = ScriptCaller._execute
    lost: list[object] = []

    def lose_replies(self: ScriptCaller, *command: str | float) -> object:
        reply = execute(self, *command)
        if "max_kept" in str(command) and isinstance(reply, list) and str(reply[0]) != "search" and len(lost) < 2:
            lost.append(reply)
            raise RedisConnectionError("the reply was dropped")
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(ScriptCaller, "_execute", lose_replies)
        assert run.signal("order", "one") in (("taken",) if waits else ("taken", "kept"))
    assert len(lost) == 2
    run.signal("order", "end")

    assert run.result(PATIENCE_S).final_output == ["one", "end"]


def test_signals_that_were_received_no_longer_count_as_kept(client: Client) -> None:
    run, large = client.submit_workflow("paced_orders", {"count": 8}), "x" * 3_000_000
    run.signal("order", "first")
    for number in range(8):  # 24 MB in all, of which the run may keep 16 MB at once
        until(lambda number=number: run.record(()).steps.get(f"paced_orders/{2 * number + 1}.wait/go"), "the pause")  # type: ignore[misc]
        assert run.signal("order", large) == "kept"
        run.signal("go", None)

    assert run.result(PATIENCE_S).raise_for_status().final_output == 8


@pytest.mark.parametrize("left", [0, 1, 25])
def test_a_workflow_that_begins_again_has_the_result_of_the_last_time(client: Client, left: int) -> None:
    run = client.submit_workflow("rounds", {"left": left})

    assert run.result(PATIENCE_S).raise_for_status().final_output == left + 1
    steps = run.record().steps
    assert Counter(step.state for step in steps.values() if step.spec.kind == "wait") == {"skipped": left + 1}
    assert max(map(len, steps)) < 60, "names do not grow with each time"


def test_a_child_may_begin_again(client: Client) -> None:
    assert client.submit_workflow("nests_rounds", {}).result(PATIENCE_S).raise_for_status().final_output == [3, 1]


def test_a_fork_of_an_earlier_history_begins_again_from_there(client: Client, journal: Path) -> None:
    run = client.submit_workflow("rounds", {"left": 2})
    assert run.result(PATIENCE_S).success
    before = Counter(journal.read_text().splitlines())

    fork = client.fork(run.run_id, "rounds/@again-1/@advance/1.add")
    assert isinstance(fork, ChainRun)

    assert fork.result(PATIENCE_S).raise_for_status().final_output == 3
    assert Counter(journal.read_text().splitlines()) - before == Counter(["add 1 1", "add 2 1"])


def test_a_task_of_a_group_may_begin_the_workflow_again(client: Client) -> None:
    assert client.submit_workflow("grouped_rounds", {"left": 2}).result(PATIENCE_S).raise_for_status().final_output == 0


def test_an_answer_has_the_type_that_the_wait_asks_for(client: Client) -> None:
    run = client.submit_workflow("typed", {})
    item = until(
        lambda: next((each for each in client.inbox(who="legal") if each.run_id == run.run_id), None), "the question"
    )
    assert (item.question, item.context, item.answer_schema and item.answer_schema["required"]) == (
        "Pay it?",
        {"amount": 3},
        ["approved"],
    )
    assert run.status() == "waiting"

    with pytest.raises(ConfigError, match=r"value: 'approved' is a required property"):
        client.answer(item.id, {"note": "no"})
    assert client.answer(item.id, {"approved": True}, groups=["sales"]).outcome == "not_allowed"
    assert client.answer(item.id, {"approved": True, "note": "good"}, by="anna", groups=["legal"]).outcome == "taken"

    assert run.result(PATIENCE_S).raise_for_status().final_output == "Approval True good"
    assert run.record().steps[item.step].info["answered_by"] == "anna"
