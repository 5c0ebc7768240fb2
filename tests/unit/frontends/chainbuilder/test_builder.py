"""What a builder does beside the workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cantata_frontends.chainbuilder import ChainBuilder, builder
from cantata_frontends.chainbuilder.builder_state import ChainProgress
from cantata_frontends.chainbuilder.plan import BuilderBase, BuilderChain, BuilderPlan


def test_a_group_is_waited_for_no_longer_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = [100.0], []
    chains = {name: BuilderChain(instructions=["x"]) for name in "abc"}

    def wait(timeout_s: float) -> None:
        given.append(timeout_s)
        clock[0] += 6

    made: Any = ChainBuilder.__new__(ChainBuilder)
    made._state = SimpleNamespace(
        plan=lambda: BuilderPlan(base=BuilderBase(model="m", instruction="{instruction}"), chains=chains),
        progress=lambda names: {name: ChainProgress(status="running", run_id=f"run-{name}") for name in names},
    )
    monkeypatch.setattr(
        builder, "shared_client", lambda: SimpleNamespace(run=lambda run_id: SimpleNamespace(wait=wait))
    )
    monkeypatch.setattr(builder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    made.wait_group("default", timeout_s=10)

    assert given == [10, 4, 0]
