"""Inputs of workflows in Python, checked by the text of their functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config.user_code.workflow_inputs import input_faults, turn_faults

CODE = "async def flow(wf, person: str, amount: int = 1, *, note: str): ...\nasync def free(wf, **rest): ...\n"


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        ("flows:flow", {"person": "Ada", "note": ""}, []),
        (
            "flows:flow",
            {"person": "Ada", "note": "", "amout": 2},
            ["'amout' is not an argument of flows:flow; did you mean 'amount'?"],
        ),
        ("flows:flow", {}, ["flows:flow requires the argument 'person'", "flows:flow requires the argument 'note'"]),
        ("flows:free", {"anything": 1}, []),
        ("elsewhere:flow", {"anything": 1}, []),
    ],
)
def test_missing_and_unknown_arguments_are_faults(
    tmp_path: Path, function: str, given: dict[str, int], expected: list[str]
) -> None:
    (tmp_path / "flows.py").write_text(CODE)

    assert [fault.message for fault in input_faults(function, given, folder=tmp_path)] == expected


@pytest.mark.parametrize(("function", "fits"), [("one", True), ("flow", False), ("free", False), ("elsewhere", True)])
def test_a_turn_gives_one_argument(tmp_path: Path, function: str, fits: bool) -> None:
    (tmp_path / "flows.py").write_text(CODE + "async def one(wf, text: str, more: int = 1): ...\n")

    faults = [fault.message for fault in turn_faults(f"flows:{function}", folder=tmp_path)]

    assert fits == (faults == [])
    assert all("use `submit workflow` with --input" in fault for fault in faults)
