"""A real stack whose workers trace what they do, and a collector that takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.flows.definitions import Agent, Definitions, Model, Tool
from cantata.operation import traces
from cantata.testing import ScriptedModels
from tests.integration.traces.collector import Collector, Seen
from tests.waiting import until

HERE = Path(__file__).parent
SECRET = "sk-test-secret-0123456789"
PATIENCE_S = 40.0
TOOLS = ("add", "fail", "die_once", "heavy", "slow", "say", "speak", "flood", "say_async", "tell_secret")
OURS = ("OTEL_", "CANTATA_")


def definitions() -> Definitions:
    """What the runs of these tests may name."""
    tools = {name: Tool(function=f"trace_tools:{name}") for name in TOOLS}
    return Definitions(
        folder=str(HERE),
        tools={
            **tools,
            "far": Tool(function="trace_tools:add", queue="extra"),
            "hasty": Tool(function="trace_tools:slow", timeout_s=0.5),
        },
        agents={
            "helper": Agent(model="main", tools=["add"], retries=1, system="You are careful."),
            "twice": Agent(model="main", instructions=["first {input}", "second {input}"]),
        },
        models={"main": Model(model="openai/gpt-4o-mini", params={"temperature": 0.5, "max_tokens": 99})},
    )


@pytest.fixture(scope="session")
def models() -> Iterator[ScriptedModels]:
    """The model server of these stacks."""
    with ScriptedModels() as server:
        yield server


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Where spans go."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels, collector: Collector
) -> Iterator[EmbeddedClient]:
    """A client with a stack, which all trace."""
    with pytest.MonkeyPatch.context() as patch:
        environment = {
            "OPENAI_API_BASE": models.url, "OPENAI_API_KEY": SECRET, "CANTATA_TOOL_MEMORY_MB": "400",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-team=ours", "OTEL_SERVICE_NAME": "tested",
        }  # fmt: skip
        for name, value in environment.items():
            patch.setenv(name, value)
        traces.stop()  # what tests before it in this process settled, when no collector was named
        with Client.embedded(tmp_path_factory.mktemp("traced"), config=definitions(), agents=1, tools=2) as client:
            yield client
        traces.stop()


def node(node_id: str, name: str, **fields: Any) -> dict[str, Any]:
    """A tool node; its fields are its input, save those that begin with `_`, which are its own."""
    own = {key[1:]: fields.pop(key) for key in list(fields) if key.startswith("_")}
    return {"node_id": node_id, "kind": "tool", "name": name, "input": fields, **own}


def trace_of(collector: Collector, run_id: str, steps: int) -> list[Seen]:
    """The spans of a run, once its root and the spans of so many steps came."""

    def whole() -> list[Seen]:
        traces.flush()
        seen = collector.spans(run_id)
        known = [span for span in seen if "cantata.step.id" in span.attributes]
        return seen if len(known) >= steps and any(span.name.startswith("run ") for span in seen) else []

    found: list[Seen] = until(whole, f"the trace of run {run_id}")
    return found
