"""Tasks of a user's own Celery application as steps: what they get, what becomes of what they return or raise."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from cantata.client.client import Client
from cantata.engine.fleet import dead_letters
from cantata.testing import ScriptedModels
from tests.faults.processes import family
from tests.integration.user_tasks.conftest import PATIENCE_S, Shop, ask, submit, tool
from tests.waiting import until


def test_a_row_of_tasks_passes_results_on(client: Client) -> None:
    row = [
        tool("a", "add", a=1, b=2, next_node="b"),
        tool("b", "add", input_map={"a": "a"}, next_node="c"),
        tool("c", "add", input_map={"a": "b"}),
    ]

    result = ask(client, *row)

    assert (result.success, result.outputs) == (True, {"a": 3, "b": 4, "c": 5})
    assert result.usage.tool_calls == 3


def test_a_task_goes_where_its_application_routes_it_and_knows_its_run(client: Client) -> None:
    run = submit(client, tool("a", "pay"))
    output = run.result(PATIENCE_S).final_output

    headers = {"cantata_run": run.run_id, "cantata_step": "a", "cantata_idempotency_key": f"{run.run_id}:a"}
    assert output == {"queue": "payments", "headers": headers}


def test_a_tool_names_another_queue(client: Client) -> None:
    assert ask(client, tool("a", "elsewhere", a=1)).final_output == 2


def test_the_task_is_known_by_the_id_that_events_tell(client: Client, shop: Shop) -> None:
    run = submit(client, tool("a", "slow", mark="known", seconds=0.3, value=7))
    event = next(event for event in run.log(timeout_s=PATIENCE_S) if event.type == "dispatched")
    run.result(PATIENCE_S)

    detail = event.model_dump()
    assert detail["task"] == "shop.tasks.slow"
    assert detail["task_id"].startswith(f"cantata-{run.run_id}-1-")
    assert shop.app.AsyncResult(detail["task_id"]).get(timeout=5) == 7
    assert run.record().steps["a"].info["task_id"] == detail["task_id"]


def test_a_map_over_tasks(client: Client) -> None:
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.numbers", "map_node": "one"},
        tool("one", "add", input_map={"a": "_item"}),
    ]

    assert ask(client, *nodes, initial_input={"numbers": list(range(60))}).final_output == list(range(1, 61))


def test_an_input_that_is_not_there_leaves_the_task_its_default(client: Client) -> None:
    node = tool("a", "add", input_map={"a": "input.a", "b": "input.b"})

    assert ask(client, node, initial_input={"a": 4}).final_output == 5


def test_what_a_task_raises_fails_its_step(client: Client) -> None:
    result = ask(client, tool("a", "fail", message="no such order"))

    assert result.error
    assert result.error.message == "node 'a' failed: task shop.tasks.fail raised ValueError: no such order"


def test_retries_are_tasks_of_their_own(client: Client) -> None:
    run = submit(client, tool("a", "stubborn", message="no"))
    run.result(PATIENCE_S)

    ids = [event.model_dump()["task_id"] for event in run.log() if event.type == "dispatched"]
    assert [event.type for event in run.log() if event.step == "a" and event.type in ("retry", "failed")] == [
        "retry",
        "failed",
    ]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("name", "given", "output"),
    [
        ("shy", {"times": 2}, 2),
        ("deputise", {"a": 5}, 15),
        ("quiet", {"a": 1}, 2),
        ("order", {"order": {"item": "tea"}}, {"item": "tea", "count": 1}),
        ("odd", {"what": "date"}, "2026-11-23"),
        ("odd", {"what": "none"}, None),
    ],
)
def test_a_task_may_retry_or_replace_itself_keep_no_result_take_models_and_return_dates(
    client: Client, name: str, given: dict[str, Any], output: object
) -> None:
    result = ask(client, tool("a", name, **given))

    assert (result.success, result.final_output) == (True, output), result.error


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("odd", {"what": "object"}, "EncodeError"),
        ("odd", {"what": "large"}, "task shop.tasks.odd returned 20.0 MB of output; the limit is 16.0 MB"),
        (
            "odd",
            {"what": "nan"},
            "task shop.tasks.odd returned a value that cannot be recorded: output: nan is not JSON",
        ),
        ("add", {"a": 1, "c": 2}, "unexpected keyword argument 'c'"),
        (
            "misspelt",
            {"a": 1},
            "no task 'shop.tasks.ad' is registered with the worker that got it; did you mean 'shop.tasks.add'?",
        ),
        ("renamed", {}, "task shop.tasks.renamed was not sent under the id that its apply_async was given"),
        ("shy", {"times": 9}, "task shop.tasks.shy raised MaxRetriesExceededError: Can't retry shop.tasks.shy"),
        ("twice", {"mark": "x"}, "task shop.tasks.late is acknowledged late (acks_late)"),
    ],
)
def test_a_step_that_cannot_succeed_tells_why(client: Client, name: str, given: dict[str, Any], message: str) -> None:
    result = ask(client, tool("a", name, **given))

    assert result.error
    assert message in result.error.message


def test_a_revoked_task_fails_its_step(client: Client, shop: Shop, tmp_path: Any) -> None:
    blockers = [
        submit(client, tool("a", "held", mark=f"blocker {number}", file=str(tmp_path / "go"))) for number in range(2)
    ]
    until(lambda: all(shop.lines("start", f"blocker {number}") for number in range(2)), "the blockers")

    run = submit(client, tool("a", "add", a=1, mark="revoked"))
    event = next(event for event in run.log(timeout_s=PATIENCE_S) if event.type == "dispatched")
    shop.app.control.revoke(event.model_dump()["task_id"])
    (tmp_path / "go").touch()

    result = run.result(PATIENCE_S)
    assert result.error
    assert result.error.message == "node 'a' failed: task shop.tasks.add was revoked"
    assert not shop.lines("start", "revoked")
    for blocker in blockers:
        blocker.result(PATIENCE_S)


def test_a_model_calls_tasks_by_their_signatures(client: Client, models: ScriptedModels) -> None:
    calls = [
        {"name": "add", "id": "1", "arguments": {"a": "20"}},
        {"name": "add", "id": "2", "arguments": {}},
        {"name": "order", "id": "3", "arguments": {"order": {"item": "tea", "count": 2}}},
        {"name": "fail", "id": "4", "arguments": {"message": "sold out"}},
    ]
    models.script([{"after_tools": 0, "tool_calls": calls}, {"reply": "done"}])

    result = client.submit_turn("Order tea.", agent="clerk").result(PATIENCE_S)

    assert result.output == "done", result.error
    asked = cast("list[Any]", models.journal()[-2:])
    schemas = {each["function"]["name"]: each["function"] for each in asked[0]["body"]["tools"]}
    assert schemas["add"]["description"] == "Add two numbers."
    assert schemas["add"]["parameters"]["properties"]["a"] == {"description": "the first", "type": "integer"}
    assert schemas["add"]["parameters"]["required"] == ["a"], "`self` is no parameter"
    answers = [message["content"] for message in asked[1]["body"]["messages"] if message["role"] == "tool"]
    assert answers[0] == "21", "converted to what the task declares"
    assert "'a' is missing" in answers[1]
    assert json.loads(answers[2]) == {"item": "tea", "count": 2}
    assert "task shop.tasks.fail raised ValueError: sold out" in answers[3]


@pytest.mark.parametrize("name", ["send_add", "send_add_async"])
def test_a_function_beside_the_application_sends_tasks_with_it(client: Client, name: str) -> None:
    assert ask(client, tool("a", name, a=4)).final_output == ["shop", "5"]


def test_a_task_is_executed_by_their_worker_alone(client: Client, shop: Shop) -> None:
    nodes = [tool("a", "slow", mark="whose", seconds=0, next_node="b"), tool("b", "slow", mark="whose", seconds=0.1)]

    assert ask(client, *nodes).success

    assert shop.worker
    assert {line["pid"] for line in shop.lines("finish", "whose")} <= set(family(shop.worker.pid)), (
        "and by no process of ours"
    )
    assert not dead_letters.letters(client.redis), "nor did one get its message"
