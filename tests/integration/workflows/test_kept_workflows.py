"""Workflows that a process keeps where they wait, on the ledger: when they go on there, and when they are replayed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cantata.flows.definitions import Definitions
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.replay import Replay
from cantata.testing import run_inline
from cantata_workers.steps import workflow_steps
from tests.integration.workflows.conftest import definitions

STEPS = 5
CHAIN = {"nodes": [{"node_id": "a", "kind": "workflow", "name": "row", "input": {"steps": STEPS}}], "entry_node": "a"}
Keep = Callable[[tuple[str, str], Replay, Callable[..., Any], Any], None]
keep: Keep = workflow_steps._keep


def nothing(key: tuple[str, str], replay: Replay, function: Callable[..., Any], last: Any) -> None:
    """Keep nothing, as a process that is new to the workflow."""
    replay.discard()


def another_activation(key: tuple[str, str], replay: Replay, function: Callable[..., Any], last: Any) -> None:
    """Keep one whose last activation is not the one that was recorded."""
    keep(key, replay, function, {**last, "at": 1.0})


def an_activation_more(key: tuple[str, str], replay: Replay, function: Callable[..., Any], last: Any) -> None:
    """Keep one that has gone on, as after an attempt that lost its lease."""
    replay.history.append(replay.history[-1])
    keep(key, replay, function, last)


def other_code(key: tuple[str, str], replay: Replay, function: Callable[..., Any], last: Any) -> None:
    """Keep one whose function is not today's, as after an edit."""
    keep(key, replay, lambda: function, last)


@pytest.mark.parametrize(
    ("kept", "begun"),
    [(keep, 1), *((each, STEPS + 1) for each in (nothing, another_activation, an_activation_more, other_code))],
)
def test_it_is_replayed_unless_it_waits_where_its_record_ends(
    kept: Keep, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_JOURNAL", str(tmp_path / "journal"))
    executions = []

    def arguments_of(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        executions.append(given)
        return given

    monkeypatch.setattr(workflow_steps, "arguments_of", arguments_of)
    monkeypatch.setattr(workflow_steps, "_keep", kept)

    assert run_inline(CHAIN, definitions=definitions()).raise_for_status().final_output == STEPS
    assert len(executions) == begun


def test_a_process_keeps_those_that_it_advanced_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_steps, "MAX_KEPT", 3)
    monkeypatch.setattr(workflow_steps, "_kept", {})
    replays = [_waiting() for _ in range(5)]

    for number, replay in enumerate(replays):
        keep((f"run{number}", "a"), replay, _waits, {})

    assert [each.is_waiting for each in replays] == [False, False, True, True, True]
    workflow_steps._discard_kept()
    assert not any(each.is_waiting for each in replays)


async def _waits(wf: Workflow) -> None:
    await wf.sleep(1)


def _waiting() -> Replay:
    replay = Replay("run", Definitions(), [])
    replay.run(partial(_waits, Workflow(replay)), at=1.0, outcomes={}, received=[], given={})
    return replay
