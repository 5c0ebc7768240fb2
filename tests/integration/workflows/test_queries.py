"""Queries of runs: while they wait, when they are over, of children and of later histories. They change nothing, here or in the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantata.client import queries
from cantata.client.async_client import AsyncClient
from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.errors import CantataError, CodeMismatchError, ConfigError, UnknownRunError
from tests.integration.workflows import desk
from tests.integration.workflows.conftest import PATIENCE_S
from tests.waiting import until


def begin(client: Client, name: str, given: dict[str, Any], waits: int = 1) -> ChainRun:
    """A run whose workflows wait for signals."""
    run = client.submit_workflow(name, given)
    until(
        lambda: sum(step.state == "waiting_signal" for step in run.record().steps.values()) == waits,
        "the waits",
        PATIENCE_S,
    )
    return run


def test_a_query_is_answered_while_the_workflow_waits_and_when_it_is_over(client: Client) -> None:
    run = begin(client, "questioned", {"items": [1, 0, 3]})
    before = list(run.log(timeout_s=0.0)), run.record().steps

    assert run.query("progress") == {"done": [2], "of": 3}
    assert run.query("progress", factor=10) == {"done": [20], "of": 3}
    assert (list(run.log(timeout_s=0.0)), run.record().steps) == before

    run.signal("go", 7)
    assert run.result(PATIENCE_S).raise_for_status().final_output == 13
    assert run.query("progress") == {"done": [2, 7, 4], "of": 3}


def test_a_cancelled_run_answers_as_far_as_it_came(client: Client) -> None:
    run = begin(client, "questioned", {"items": [1, 0]})
    run.cancel()
    assert run.wait(PATIENCE_S).status == "cancelled"

    assert run.query("progress") == {"done": [2], "of": 2}


def test_the_step_names_one_of_several_workflows(client: Client) -> None:
    run = begin(client, "questioned_parent", {}, waits=2)
    children = [f"questioned_parent/{number}.questioned" for number in (0, 1)]

    assert [run.query("progress", step_id=each) for each in (*children, "1.questioned")] == [
        {"done": [6], "of": 2},
        {"done": [7], "of": 2},
        {"done": [7], "of": 2},
    ]
    with pytest.raises(
        ConfigError,
        match=r"several workflows of run .* have the query 'progress'; name the step of one: 'questioned_parent/0",
    ):
        run.query("progress")
    with pytest.raises(ConfigError, match="the workflow has no query 'regress' here"):
        run.query("regress")
    with pytest.raises(
        ConfigError, match=r"no workflow of run .* has the step 'parent'; known are 'questioned_parent', "
    ):
        run.query("progress", step_id="parent")
    run.cancel()


def test_the_outermost_workflow_answers_and_else_the_only_one_that_has_the_query(client: Client) -> None:
    run = begin(client, "questioned_outer", {}, waits=1)

    assert run.query("place") == "outer"
    assert run.query("progress") == {"done": [6], "of": 2}
    run.cancel()


def test_the_newest_history_answers(client: Client) -> None:
    run = begin(client, "questioned_rounds", {"left": 2})

    assert run.query("rounds") == 0
    run.signal("go", 1)
    run.wait(PATIENCE_S)
    assert run.query("rounds") == 0


def test_faults_of_who_asks(client: Client) -> None:
    run = begin(client, "questioned", {"items": [0]})
    chain = client.submit_chain("pair", initial_input={"a": 1})
    chain.wait(PATIENCE_S)

    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: run.query("progres"), "the workflow has no query 'progres' here; did you mean 'progress'?"),
        (
            lambda: run.query("progress", faktor=1),
            "query progress(factor: int = 1) -> dict[str, Any]: got an unexpected keyword",
        ),
        (lambda: chain.query("progress"), f"run '{chain.run_id}' has no workflow in Python"),
    ]
    for call, message in calls:
        with pytest.raises(ConfigError) as raised:
            call()
        assert message.replace("'", "") in str(raised.value).replace("'", "")
    with pytest.raises(UnknownRunError):
        ChainRun(client.engine, "0123456789abcdef").query("progress")
    run.cancel()


def test_code_that_is_not_here_or_follows_another_history(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = begin(client, "questioned", {"items": [1, 0]})

    with monkeypatch.context() as patch:
        patch.setattr(queries, "_load", lambda *_: desk.starts_later)
        patch.setattr(queries, "arguments_of", lambda *_: {})
        with pytest.raises(
            CodeMismatchError, match=r"workflow 'questioned' \(desk:questioned\) does not follow the run's history"
        ):
            run.query("progress")
    with pytest.raises(CantataError, match="module 'not_here' cannot be imported: ModuleNotFoundError"):
        queries._load("not_here:desk", str(tmp_path))
    with pytest.raises(CantataError, match="json:dumps is not a workflow; decorate it with @workflow"):
        queries._load("json:dumps", str(tmp_path))
    run.cancel()


def test_a_coroutine_that_asks_keeps_its_event_loop_and_its_files(client: Client, tmp_path: Path) -> None:
    run = begin(client, "questioned", {"items": [1, 0]})

    async def ask() -> list[Any]:
        async with AsyncClient.of(client) as other:
            found = await (await other.run(run.run_id)).query("progress")
        directly = run.query("progress")
        (tmp_path / "file").write_text("written")
        await asyncio.sleep(0)
        return [found, directly]

    assert asyncio.run(ask()) == [{"done": [2], "of": 2}] * 2
    run.cancel()
