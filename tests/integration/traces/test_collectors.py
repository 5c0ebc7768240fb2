"""A collector that is slow, or down, holds nothing up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.operation import traces
from cantata.testing import ScriptedModels
from tests.integration.traces.collector import Collector
from tests.integration.traces.conftest import HERE, PATIENCE_S, definitions, node

pytestmark = pytest.mark.timeout(180)

SLOW_S = 25.0  # longer than any of these tests takes without waiting for it
SPARE_S = 20.0  # what a stack may take to stop on a busy machine; it takes 3


@pytest.fixture
def slow() -> Iterator[Collector]:
    """A collector that answers too late."""
    with Collector() as collector:
        collector.delay_s = SLOW_S
        yield collector


@pytest.mark.slow("a stack of its own starts and ends")
def test_a_slow_collector_slows_no_run_and_no_stop(
    slow: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", slow.url)
    monkeypatch.setenv("CANTATA_LOG_FORMAT", "json")
    with Client.embedded(tmp_path / "home", config=definitions(), agents=1, tools=2) as client:
        since = time.monotonic()
        for i in range(20):
            nodes = [node("one", "add", a=i, _next_node="two"), node("two", "add", a=i)]
            assert client.submit_chain({"nodes": nodes, "entry_node": "one"}).result(PATIENCE_S).success
        ran_s = time.monotonic() - since
        since = time.monotonic()
    stopped_s = time.monotonic() - since
    since = time.monotonic()
    traces.stop()

    assert ran_s < SLOW_S
    assert stopped_s < SPARE_S
    assert time.monotonic() - since < SPARE_S
    assert "Traceback" not in (tmp_path / "home" / "logs" / "tools.log").read_text()


@pytest.mark.thorough("a stack of its own; that a worker told to stop loses nothing is held by traces/test_traces.py")
@pytest.mark.slow("a stack of its own starts and ends")
def test_nothing_is_lost_when_a_stack_stops(
    collector: Collector, models: ScriptedModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "OPENAI_API_BASE": models.url, "OPENAI_API_KEY": "sk-test", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # so that only the end of a process sends its spans
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Client.embedded(tmp_path / "home", config=definitions(), agents=1, tools=1) as client:
        models.script([{"tool_calls": [{"name": "add", "arguments": {"a": 1}}], "times": 1}, {"reply": "two"}])
        run = client.submit_turn("What is 1 and 1?", agent="helper")
        assert run.result(PATIENCE_S).output == "two"
        steps = sum(bool(step.attempt) for step in run.record().steps.values())
    traces.stop()

    spans = collector.spans(run.run_id)
    assert sum("cantata.step.id" in span.attributes for span in spans) == steps
    assert {span.name for span in spans} >= {
        "run turn",
        "submit turn",
        "invoke_agent helper",
        "chat gpt-4o-mini",
        "execute_tool add",
    }
    assert (
        len(
            {
                span.attributes["cantata.worker"].partition("@")[0]
                for span in spans
                if "cantata.worker" in span.attributes
            }
        )
        == 3
    )


DOWN = """
import sys, time
from cantata.operation import traces as tracing
from cantata.operation.logs import configure_logs
configure_logs()
tracing.start("one", "1", is_global=True)
spans = tracing.active()
for number in range(3000):
    with spans.step("run", f"s{number}", 1, 7, "step x", {}):
        pass
until = time.monotonic() + 25
while "trace_export_failed" not in open(sys.argv[1]).read() and time.monotonic() < until:
    time.sleep(0.05)
since = time.monotonic()
tracing.stop()
print(time.monotonic() - since)
"""


def test_a_collector_that_is_down_is_told_of_once_and_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}

    with log.open("w") as errors:
        found = subprocess.run(
            [sys.executable, "-c", DOWN, str(log)],
            cwd=HERE.parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=60,
            check=False,
        )

    assert found.returncode == 0, log.read_text()
    assert float(found.stdout) < 4.0
    assert log.read_text().count("\n") == log.read_text().count("trace_export_failed") == 1


@pytest.mark.slow("workers start from nothing")
def test_without_a_collector_nothing_that_traces_is_imported() -> None:
    modules = "cantata_workers.process.service, cantata_workers.steps.execute, cantata.client.client"
    script = f"import sys, {modules}; sys.exit('opentelemetry.sdk.trace' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}

    assert (
        subprocess.run(
            [sys.executable, "-c", script], cwd=HERE.parents[2], env=environment, timeout=60, check=False
        ).returncode
        == 0
    )
