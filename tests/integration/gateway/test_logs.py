"""What was logged for a run, over HTTP."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.integration.gateway.conftest import ANNA, OTTO, PATIENCE_S, TENANTS, Deployment, Json

pytestmark = pytest.mark.timeout(180)


def read(http: httpx.Client, run_id: str, count: int, **query: Any) -> Json:
    """The lines of a run, once there are so many."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        found: Json = http.get(f"/runs/{run_id}/logs", params=query).raise_for_status().json()
        if len(found["lines"]) >= count or time.monotonic() > give_up:
            return found


def test_the_lines_of_a_run_are_told_to_its_tenant(deployment: Deployment) -> None:
    chain = {
        "nodes": [{"node_id": "x", "kind": "tool", "name": "add", "input": {"a": 1, "b": "no number"}}],
        "entry_node": "x",
    }
    with (
        deployment.gateway(CANTATA_GATEWAY_TOKENS=str(TENANTS).replace("'", '"')) as gateway,
        gateway.http(ANNA) as anna,
        gateway.http(OTTO) as otto,
    ):
        run_id = anna.post("/chains", params={"wait": 30}, json=chain).json()["run_id"]

        found = read(anna, run_id, 2)
        failed, *_ = read(anna, run_id, 1, level="warning")["lines"]
        behind = anna.get(f"/runs/{run_id}/logs", params={"after": found["next"]}).json()

        assert [line["event"] for line in found["lines"]] == ["tool_failed", "step_failed"]
        assert (found["dropped"], found["next"]) == (0, found["lines"][-1]["id"])
        assert (failed["event"], failed["step"]) == ("step_failed", "x")
        assert behind == {"lines": [], "dropped": 0, "next": None}
        assert read(anna, run_id, 0, step="y")["lines"] == []
        assert otto.get(f"/runs/{run_id}/logs").status_code == 404
        assert anna.get(f"/runs/{run_id}/logs", params={"after": "x"}).status_code == 422
