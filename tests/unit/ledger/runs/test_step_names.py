"""Names of steps for people."""

from __future__ import annotations

import pytest

from cantata.ledger.runs.step_names import is_counted, name_of


@pytest.mark.parametrize(
    ("step_id", "work", "name"),
    [
        ("@start", "", "start"),
        ("price", "tools:price_of", "price"),
        ("price#2.1", "tools:price_of", "price#2.1"),
        ("m/12", "tools:add", "m [12]"),
        ("g/m/3", "tools:add", "m [3]"),
        ("m/@gather", "", "gather"),
        ("g/@end", "", "end"),
        ("g/@7", "", "7"),
        ("@rules", "teams:desk", "rules"),
        ("writer/t0", "tools:files.read", "files.read"),
        ("writer/r2", "agents:writer", "writer, round 3"),
        ("letter/@2", "agents:writer", "writer, step 2"),
        ("letter/@2!", "breakers:writer", "writer, check 2"),
        ("report/2.writer", "agents:writer", "writer"),
        ("report/0.wait/approve", "", "approve"),
        ("report/@2/@advance", "workflows:report", "report"),
        ("letter/t0", "", "t0"),
    ],
)
def test_a_step_is_called_by_its_node_agent_tool_or_number(step_id: str, work: str, name: str) -> None:
    assert name_of(step_id, work) == name


@pytest.mark.parametrize(
    ("step_id", "expected"),
    [("clerk/t0", True), ("letter/@2!", True), ("m/3", False), ("w/2.read", False), ("t0", False)],
)
def test_an_id_that_only_counts_needs_a_name(step_id: str, expected: bool) -> None:
    assert is_counted(step_id) is expected
