"""Rules of routers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cantata.errors import ImportFailedError
from cantata.flows.definitions import Team, TeamRule
from cantata_workers.steps.routing import agent_by_rule


def test_a_rule_whose_function_this_worker_cannot_import_is_refused_to_it_and_chooses_nobody_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "routing_rules.py").write_text("import not_there_at_all\n")
    team = Team(mode="router", agents=["ann", "bob"], rules=[TeamRule(function="routing_rules:choose")])
    step: Any = SimpleNamespace(folder=str(tmp_path))
    warnings: list[str] = []

    with pytest.raises(ImportFailedError, match="not_there_at_all"):
        agent_by_rule(step, team, 0, "who answers?", warnings)

    assert warnings == []
