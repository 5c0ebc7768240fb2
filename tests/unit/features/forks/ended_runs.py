"""Runs that have ended, for forks of them."""

from __future__ import annotations

from cantata.flows.definitions import Agent, Definitions
from cantata.flows.forks import EndedRun
from cantata.values import JsonValue

DEFINITIONS = Definitions(agents={"ann": Agent()})
CHAIN: JsonValue = {
    "nodes": [{"node_id": "a", "kind": "agent", "name": "ann", "input_map": {"input": "x"}}], "entry_node": "a",
    "initial_input": {"x": 1, "deep": {"y": 2}}, "chain_id": "c",
}  # fmt: skip
TURN: JsonValue = {"text": "hello", "agent": "ann"}


def ended_run(kind: str, request: JsonValue, **labels: str) -> EndedRun:
    return EndedRun(
        run_id="old",
        status="succeeded",
        kind=kind,
        request=request,
        definitions="",
        labels=labels,
        steps={},
        specs={},
        shared={},
        edges={},
        names={},
        expansions={},
        terminals="[]",
    )
