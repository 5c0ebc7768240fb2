"""Traces of runs, as a collector gets them from real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from cantata.client.client import EmbeddedClient
from cantata.client.graphs.run_pages import RunPages
from cantata.client.runs import Run
from cantata.operation.traces import conventions
from cantata.testing import ScriptedModels
from tests.integration.traces.collector import Collector, Seen
from tests.integration.traces.conftest import PATIENCE_S, node, trace_of
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)

TOP = Path(__file__).parents[3]


def done(run: Run) -> list[str]:
    """The steps that workers did, by id."""
    return sorted(step.step_id for step in run.record().steps.values() if step.attempt)


def steps_of(spans: Iterable[Seen]) -> list[str]:
    """The steps that have a span, by id; one that has two twice."""
    return sorted(str(span.attributes["cantata.step.id"]) for span in spans if "cantata.step.id" in span.attributes)


def named(spans: Iterable[Seen], name: str) -> list[Seen]:
    """The spans of a name, in the order they began."""
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_ns)


def test_a_chain_is_one_trace_from_submit_to_end(client: EmbeddedClient, collector: Collector) -> None:
    run = client.submit_chain(
        {"nodes": [node("one", "add", a=1, _next_node="two"), node("two", "add", a=2)], "entry_node": "one"}
    )
    run.wait(PATIENCE_S)

    spans = trace_of(collector, run.run_id, len(done(run)))

    assert {span.trace_id for span in spans} == {f"{conventions.trace_id(run.run_id):032x}"}
    assert steps_of(spans) == done(run)
    roots = [span for span in spans if not span.parent_id]
    assert [root.name for root in roots] == ["run chain"]
    assert roots[0].span_id == f"{conventions.run_span(run.run_id):016x}"
    record = run.record()
    assert (roots[0].start_ns, roots[0].end_ns) == (
        record.created_at_ms * 1_000_000,
        (record.closed_at_ms or 0) * 1_000_000,
    )
    assert roots[0].attributes["cantata.run.status"] == "succeeded"
    known = {span.span_id for span in spans}
    assert [span for span in spans if span.parent_id and span.parent_id not in known] == []
    assert Counter(span.name for span in spans)["submit chain"] == 1
    tool, _ = named(spans, "execute_tool add")
    assert (
        tool.attributes.items()
        >= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "cantata.step.attempt": 1}.items()
    )
    assert tool.resource["service.name"] == "tested"
    assert collector.headers[-1]["x-team"] == "ours"


def test_the_run_pages_know_the_ids_of_what_was_exported(client: EmbeddedClient, collector: Collector) -> None:
    run = client.submit_chain({"nodes": [node("one", "add", a=1)], "entry_node": "one"})
    run.wait(PATIENCE_S)
    pages = RunPages(client.engine)

    spans = trace_of(collector, run.run_id, len(done(run)))
    shown, step = pages.graph(None, run.run_id).run, pages.step(None, run.run_id, "one")

    (root,) = (span for span in spans if not span.parent_id)
    assert (shown.trace_id, shown.span_id) == (root.trace_id, root.span_id)
    assert [each.span_id for each in step.attempts] == [each.span_id for each in named(spans, "execute_tool add")]


def test_agents_and_their_models_follow_the_conventions(
    client: EmbeddedClient, collector: Collector, models: ScriptedModels
) -> None:
    models.script([
        {"tool_calls": [{"name": "add", "arguments": {"a": 1}}], "times": 1}, {"reply": "It is two."},
    ])  # fmt: skip
    run = client.submit_turn("What is 1 and 1?", agent="helper", session="s1")
    assert run.result(PATIENCE_S).output == "It is two."

    spans = trace_of(collector, run.run_id, len(done(run)))

    first, second = named(spans, "invoke_agent helper")
    assert first.attributes["gen_ai.agent.name"] == "helper"
    assert first.attributes["gen_ai.conversation.id"] == "s1"
    asked, again = named(spans, "chat gpt-4o-mini")
    assert [asked.parent_id, again.parent_id] == [first.span_id, second.span_id]
    assert asked.kind == 3  # CLIENT
    assert (
        asked.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4o-mini",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 99,
        }.items()
    )
    assert asked.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert again.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert "gpt-4o-mini" in again.attributes["gen_ai.response.model"]
    used = run.record().usage
    assert sum(each.attributes["gen_ai.usage.input_tokens"] for each in (asked, again)) == used.input_tokens > 0
    assert sum(each.attributes["gen_ai.usage.output_tokens"] for each in (asked, again)) == used.output_tokens > 0
    (tool,) = named(spans, "execute_tool add")
    assert tool.start_ns >= asked.end_ns
    assert "It is two." not in str(spans)
    assert "What is 1 and 1?" not in str(spans)


def test_a_step_hangs_on_what_grew_it(client: EmbeddedClient, collector: Collector, models: ScriptedModels) -> None:
    models.script([{"reply": "fine"}])
    run = client.submit_turn("go", agent="twice")
    run.wait(PATIENCE_S)

    spans = trace_of(collector, run.run_id, len(done(run)))

    by_step = {str(span.attributes["cantata.step.id"]): span for span in spans if "cantata.step.id" in span.attributes}
    record = run.record()
    grown = {step: record.steps[step].spec.scope for step in by_step if record.steps[step].spec.scope}
    assert grown
    assert all(by_step[step].parent_id == by_step[str(scope)].span_id for step, scope in grown.items())


def test_what_fails_says_why(client: EmbeddedClient, collector: Collector) -> None:
    run = client.submit_chain({"nodes": [node("x", "fail", message="broken")], "entry_node": "x"})
    run.wait(PATIENCE_S)

    spans = trace_of(collector, run.run_id, len(done(run)))

    (tool,) = named(spans, "execute_tool fail")
    (root,) = named(spans, "run chain")
    assert tool.has_failed
    assert tool.attributes["error.type"] == "tool_error"
    assert "RuntimeError: broken" in tool.message
    assert root.has_failed
    assert root.attributes["cantata.run.status"] == "failed"


def test_an_attempt_after_a_death_is_in_the_same_trace_and_says_so(
    client: EmbeddedClient, collector: Collector, tmp_path: Path
) -> None:
    run = client.submit_chain({"nodes": [node("x", "die_once", mark=str(tmp_path / "mark"))], "entry_node": "x"})
    assert run.result(PATIENCE_S).success

    spans = trace_of(collector, run.run_id, len(done(run)))

    (tool,) = named(spans, "execute_tool die_once")  # the attempt that died left none
    assert tool.attributes["cantata.step.attempt"] == 2
    assert tool.span_id == f"{conventions.step_span(run.run_id, 'x', 2):016x}"
    ((event, about),) = tool.events
    assert event == "attempt_lost"
    assert about["cantata.step.attempt"] == 1
    assert about["cantata.worker"].startswith("tools@")


@pytest.mark.parametrize("end", ["cancelled", "timed_out"])
def test_a_run_that_no_step_ended_has_a_root(client: EmbeddedClient, collector: Collector, end: str) -> None:
    request = {
        "nodes": [node("x", "slow", seconds=30)],
        "entry_node": "x",
        **({"timeout": 1} if end == "timed_out" else {}),
    }
    run = client.submit_chain(request)
    if end == "cancelled":
        until(lambda: "x" in run.steps(["x"]) and run.steps(["x"])["x"].state == "running", "the step")
        run.cancel()
        run.cancel()
    run.wait(PATIENCE_S)

    spans = trace_of(collector, run.run_id, 1)

    (root,) = named(spans, "run chain")
    assert root.attributes["cantata.run.status"] == end
    assert root.has_failed


def test_a_fork_is_linked_with_what_it_was_made_of(client: EmbeddedClient, collector: Collector) -> None:
    run = client.submit_chain({"nodes": [node("x", "fail")], "entry_node": "x"})
    run.wait(PATIENCE_S)
    fork = client.retry(run.run_id)
    fork.wait(PATIENCE_S)

    spans = trace_of(collector, fork.run_id, 1)

    (submitted,) = named(spans, "submit fork")
    assert (f"{conventions.trace_id(run.run_id):032x}", f"{conventions.run_span(run.run_id):016x}") in submitted.links


@pytest.mark.thorough("children are replaced; that a worker told to stop loses no span is another test here")
def test_nothing_is_lost_when_children_are_replaced(client: EmbeddedClient, collector: Collector) -> None:
    nodes = [
        node(f"n{i}", "heavy" if i % 6 == 5 else "add", **({"megabytes": 250} if i % 6 == 5 else {"a": i}))
        for i in range(24)
    ]
    runs = [client.submit_chain({"nodes": [each], "entry_node": each["node_id"]}) for each in nodes]
    for run in runs:
        assert run.result(PATIENCE_S).success

    seen = [trace_of(collector, run.run_id, len(done(run))) for run in runs]

    assert [steps_of(spans) for spans in seen] == [done(run) for run in runs]
    children = {
        span.attributes["cantata.worker"] for spans in seen for span in spans if span.name.startswith("execute_tool")
    }
    assert len(children) > 2  # there are two at a time


def test_nothing_is_lost_when_a_worker_is_told_to_stop(client: EmbeddedClient, collector: Collector) -> None:
    command = [sys.executable, "-m", "cantata_workers", "extra", "--name", "extra", "--concurrency", "2"]
    environment = {
        **os.environ,
        "REDIS_URL": client.redis_url,
        "OTEL_BSP_SCHEDULE_DELAY": "60000",
    }  # so that only its end sends them
    with subprocess.Popen(command, cwd=TOP, env=environment) as worker:
        nodes = [node("n", "far", a=1)]
        runs = [client.submit_chain({"nodes": nodes, "entry_node": "n"}) for _ in range(30)]
        for run in runs:
            run.wait(PATIENCE_S)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0

    assert [len(named(collector.spans(run.run_id), "execute_tool far")) for run in runs] == [1] * len(
        runs
    )  # no flush, no waiting


SCRIPT = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from cantata.client.client import Client
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with Client(config={config!r}) as client, trace.get_tracer("app").start_as_current_span("order") as order:
    run = client.submit_chain({{"nodes": [{{"node_id": "ask", "kind": "wait"}}], "entry_node": "ask"}})
    next(event for event in run.log(timeout_s=40) if event.type == "waiting")  # no worker has to do with it now, and would tell its end
    run.cancel()
print(json.dumps([run.run_id, [json.loads(span.to_json()) for span in spans.get_finished_spans()]]))
"""


def test_a_program_with_its_own_provider_gets_the_spans_of_its_runs(client: EmbeddedClient, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("version: 1\nagents:\n  one: {model: openai/gpt-4o-mini}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    script = SCRIPT.format(config=str(config))

    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=TOP,
        env={**environment, "REDIS_URL": client.redis_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert found.returncode == 0, found.stderr
    run_id, spans = json.loads(found.stdout)
    by_name = {span["name"]: span for span in spans}
    trace_id = f"0x{conventions.trace_id(run_id):032x}"
    assert by_name["submit chain"]["context"]["trace_id"] == trace_id
    assert by_name["submit chain"]["parent_id"] == f"0x{conventions.run_span(run_id):016x}"
    assert by_name["submit chain"]["links"][0]["context"]["span_id"] == by_name["order"]["context"]["span_id"]
    assert by_name["order"]["context"]["trace_id"] != trace_id
    assert by_name["order"]["links"][0]["context"]["trace_id"] == trace_id
    assert by_name["run chain"]["context"]["span_id"] == f"0x{conventions.run_span(run_id):016x}"
