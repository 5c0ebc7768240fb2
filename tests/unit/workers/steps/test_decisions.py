"""Expressions of a step are counted together, wherever they stand, against the limits of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import Definitions, Limits
from cantata.flows.graph import Spec
from cantata.ledger.records import Begun
from cantata.values import JsonValue
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.steps.decisions import chain_end

BOMB = " | ".join(["[@,@]"] * 30)


def work(params: dict[str, JsonValue], **limits: int) -> StepContext:
    definitions = Definitions(limits=Limits.model_validate(limits))
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    return StepContext(
        Begun(
            "run",
            "step",
            1,
            "worker",
            Spec(kind="chain.end", params=params),
            None,
            0,
            {"@input": {"text": "x" * 100}},
            "",
        ),
        process,
    )


def test_an_answer_that_multiplies_its_data_fails_its_step() -> None:
    with pytest.raises(StepError, match=r"it produces more than 64 MB \(limits.expression_bytes\)") as caught:
        chain_end(work({"answers": {"a": BOMB}}))

    assert caught.value.code == "expression_too_large"


def test_all_keys_of_an_input_map_share_the_limits_of_the_run() -> None:
    mapped: dict[str, JsonValue] = {f"k{n}": "input.text" for n in range(50)}

    assert len(work({"map": mapped}).node_input) == 50
    with pytest.raises(StepError, match=r"it produces more than 0.001 MB \(limits.expression_bytes\)"):
        _ = work({"map": mapped}, expression_bytes=1000).node_input
    with pytest.raises(StepError, match=r"it visits more than 20 values \(limits.expression_nodes\)"):
        _ = work({"map": mapped}, expression_nodes=20).node_input
