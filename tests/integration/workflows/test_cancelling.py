"""Workflows that are cancelled while they run: their code cleans up, within its time."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.testing import replay
from tests.integration.workflows.conftest import PATIENCE_S, definitions
from tests.waiting import until


def begun(client: Client, name: str, **given: Any) -> ChainRun:
    """A run that waits for a person."""
    run = client.submit_workflow(name, given)
    return waiting(run)


def waiting(run: ChainRun) -> ChainRun:
    """The run, when it waits for a person."""
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "a wait", PATIENCE_S)
    return run


def noted(journal: Path, mark: str) -> list[str]:
    """What was done about a mark."""
    return [line for line in journal.read_text().splitlines() if mark in line]


@pytest.fixture
def mark() -> str:
    """A text of this test alone."""
    return uuid.uuid4().hex


def test_steps_of_finally_are_executed(client: Client, journal: Path, mark: str) -> None:
    run = begun(client, "cleans", mark=mark)

    assert run.cancel() == "cancelling"

    result = run.result(PATIENCE_S)
    assert (result.status, result.error and result.error.message) == ("cancelled", "the run was cancelled")
    assert noted(journal, mark) == [f"reserve {mark}", f"release reserve {mark}", f"released reserve {mark}"]
    assert [event.type for event in run.log() if event.type in ("cancelling", "closed")] == ["cancelling", "closed"]
    assert run.cancel() == "cancelled"


def test_skipped_time_ends_the_grace(client: Client, journal: Path, mark: str) -> None:
    run = begun(client, "cleans", mark=mark, waits=True)
    run.cancel()
    until(lambda: noted(journal, mark)[-1].startswith("release "), "the first step of cleaning up", PATIENCE_S)
    waiting(run)

    assert (run.status(), run.cancel(), run.view().status) == ("cancelling", "cancelling", "cancelling")
    client.stack.skip(31)  # type: ignore[attr-defined]

    assert run.result(PATIENCE_S).status == "cancelled"
    assert noted(journal, mark) == [f"reserve {mark}", f"release reserve {mark}"]


def test_code_that_goes_on_ends_with_the_grace(client: Client) -> None:
    run = begun(client, "goes_on")
    run.cancel()
    until(lambda: "goes_on/1.wait/go" in run.record().steps, "the second wait", PATIENCE_S)
    client.stack.skip(31)  # type: ignore[attr-defined]

    assert run.result(PATIENCE_S).status == "cancelled"


def test_without_a_grace_it_ends_at_once(client: Client, journal: Path, mark: str) -> None:
    run = begun(client, "hasty", mark=mark)

    assert run.cancel() == "cancelled"
    assert run.result(PATIENCE_S).status == "cancelled"
    assert noted(journal, mark) == [f"reserve {mark}"]


def test_of_nested_workflows_the_outer_one_cleans_up(client: Client, journal: Path, mark: str) -> None:
    run = begun(client, "cleans_outside", mark=mark)
    run.cancel()

    assert run.result(PATIENCE_S).status == "cancelled"
    assert noted(journal, mark) == [f"reserve {mark}", f"outside {mark}"]


def test_a_recording_of_it_is_replayed_as_far_as_it_is_recorded(client: Client, mark: str) -> None:
    run = begun(client, "cleans", mark=mark)
    run.cancel()
    run.result(PATIENCE_S)

    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert comparison.differences == (), str(comparison)
