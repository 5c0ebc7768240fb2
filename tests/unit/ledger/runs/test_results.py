"""Results of runs that did not succeed, and the ways to name a chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config import loading as configuration
from cantata.errors import ConfigError, RunError
from cantata.flows.definitions import Chain, Definitions
from cantata.flows.wire import RunResult, RunStatus
from cantata.ledger.runs.results import refused_turn
from cantata.values import ErrorInfo

NODES = [{"node_id": "a", "kind": "wait"}]
DEFINITIONS = Definitions(
    chains={"report": Chain.model_validate({"nodes": NODES, "entry_node": "a", "inputs": {"n": "integer"}})}
)


def test_an_answer_is_had_only_from_a_run_that_succeeded() -> None:
    answered = RunResult(run_id="r", status="succeeded", output="yes")

    assert answered.raise_for_status().output == "yes"


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("failed", "failed"),
        ("cancelled", "was cancelled"),
        ("timed_out", "timed out"),
        ("exhausted", "exhausted its budget"),
    ],
)
def test_a_run_without_an_answer_raises_why(status: RunStatus, ended: str) -> None:
    result = RunResult(run_id="r", status=status, error=ErrorInfo(code="model_error", message="no key"))

    with pytest.raises(RunError, match=f"run r {ended}: no key") as caught:
        result.raise_for_status()

    assert (caught.value.run_id, caught.value.status, caught.value.code) == ("r", status, "model_error")


def test_a_run_that_is_not_over_has_no_answer_yet() -> None:
    with pytest.raises(RunError, match="has no answer yet: it is running"):
        RunResult(run_id="r", status="running").raise_for_status()


def test_a_refused_turn_raises_its_faults() -> None:
    with pytest.raises(RunError, match="turn: no agent"):
        refused_turn(ConfigError("no agent", source="turn")).raise_for_status()


def test_a_chain_is_found_by_the_name_of_its_file_or_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.yaml").write_text("entry_node: b\nnodes: [{node_id: b, kind: wait}]")

    assert configuration.request_named("other.yaml", DEFINITIONS)[0].entry_node == "b"
    named = configuration.request_named("report", DEFINITIONS)[0]
    assert (named.chain_id, named.entry_node, named.inputs) == ("report", "a", {"n": "integer"})


@pytest.mark.parametrize("name", ["reprot", "x" * 5000, "a\0b"])
def test_a_name_that_is_neither_is_a_fault(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no such file, and no chain of that name in the configuration"):
        configuration.request_named(name, DEFINITIONS)


def test_a_configuration_in_place_of_a_chain_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text("agents: {a: {}}")

    with pytest.raises(ConfigError, match="this is a configuration, not a chain request"):
        configuration.request_named(str(tmp_path / "desk.yaml"), DEFINITIONS)
