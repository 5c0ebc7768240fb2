"""Spans of runs: their ids, names and attributes, without a collector."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from structlog.testing import capture_logs

from cantata.flows.graph import Spec
from cantata.operation import traces
from cantata.operation.traces import conventions
from cantata.operation.traces.spans import Spans
from cantata.values import ToolCallRequest, Usage

RUN = dict.fromkeys(("error", "session", "tenant", "input_tokens", "output_tokens", "cost_usd"))


def made(ratio: float = 1.0) -> tuple[Spans, InMemorySpanExporter]:
    seen, provider = InMemorySpanExporter(), TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
    provider.add_span_processor(SimpleSpanProcessor(seen))
    return Spans(provider, "1"), seen


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """This process makes no spans before and after."""
    traces.stop()
    yield
    traces.stop()


def test_ids_are_those_of_the_run_wherever_they_are_worked_out() -> None:
    assert f"{conventions.trace_id('1a2b'):032x}" == "4d49af7ec9d36a71aefb8546264e494c"
    steps = {conventions.step_span("r", *attempt) for attempt in (("a", 1), ("a", 2), ("b", 1))}
    assert len({conventions.run_span("r"), *steps}) == 4


def test_two_processes_sample_the_same_runs_and_whole_ones() -> None:
    (one, first), (other, second) = made(0.5), made(0.5)
    for number in range(200):
        run_id = f"run{number}"
        with one.step(run_id, "a", 1, conventions.run_span(run_id), "step a", {}), one.call("chat m", {}):
            pass
        other.run(
            run_id, {**RUN, "kind": "turn", "status": "succeeded", "created_at": "1", "closed_at": "2", "count": "1"}
        )

    steps = {span.context.trace_id for span in first.get_finished_spans()}
    roots = {span.context.trace_id for span in second.get_finished_spans()}
    assert steps == roots
    assert 50 < len(roots) < 150
    assert len(first.get_finished_spans()) == 2 * len(roots)


def test_spans_of_others_keep_ids_of_chance() -> None:
    spans, seen = made()
    with spans.step("r", "a", 1, 7, "step a", {}):
        for _ in range(2):
            with spans.call("chat m", {}):
                pass

    *calls, step = seen.get_finished_spans()
    assert step.context.span_id == conventions.step_span("r", "a", 1)
    assert len({step.context.span_id, *(call.context.span_id for call in calls)}) == 3


@pytest.mark.parametrize(("kind", "work", "name"), [
    ("agent.turn", "agents:ann", "invoke_agent ann"), ("diskurs.ask", "agents:ann", "invoke_agent ann"),
    ("tool.call", "tools:add", "execute_tool add"), ("mcp.call", "tools:files.read", "execute_tool files.read"),
    ("chain.map", "", "step chain.map"),
])  # fmt: skip
def test_steps_have_the_names_of_the_conventions(kind: str, work: str, name: str) -> None:
    assert conventions.step_name(Spec(kind=kind, work=work)) == name


@pytest.mark.parametrize(
    ("model", "provider"), [("azure", "azure.ai.openai"), ("openai", "openai"), ("bedrock", "aws.bedrock")]
)
def test_a_model_call_says_whom_it_asks(model: str, provider: str) -> None:
    params = {"temperature": 0.1, "stop": "x", "max_completion_tokens": 5, "api_key": "secret", "messages": ["private"]}

    name, attributes = conventions.chat_span(model, "m", params, is_streamed=True)

    assert name == "chat m"
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.provider.name": provider,
        "gen_ai.request.temperature": 0.1,
        "gen_ai.request.stop_sequences": ["x"],
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.stream": True,
    }


def test_messages_are_told_as_the_conventions_have_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]  # fmt: skip

    inputs = json.loads(conventions.input_messages(messages))
    outputs = json.loads(
        conventions.output_messages("so", [ToolCallRequest(id="2", name="add", arguments="{}")], "stop")
    )

    assert inputs[0] == {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    assert inputs[1]["parts"] == [{"type": "tool_call", "id": "1", "name": "add", "arguments": '{"a": 1}'}]
    assert inputs[2]["parts"] == [{"type": "tool_call_response", "id": "1", "response": "2"}]
    assert [part["type"] for part in outputs[0]["parts"]] == ["text", "tool_call"]
    assert outputs[0]["finish_reason"] == "stop"


def test_what_no_model_was_asked_for_costs_nothing() -> None:
    assert conventions.usage_attributes(Usage(tool_calls=1)) == {}


@pytest.mark.parametrize(("environment", "is_wanted"), [
    ({}, False), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True), ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
])  # fmt: skip
def test_the_environment_says_whether_runs_are_traced(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_wanted: bool
) -> None:
    for name in (*traces.ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert traces.is_wanted() == is_wanted


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(traces, "_is_missing", False)
    monkeypatch.setattr(traces, "log", structlog.get_logger())  # one that nobody has used yet
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "cantata.operation.traces."))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.sdk.trace"):
        monkeypatch.setitem(sys.modules, name, None)
    for part in ("export", "spans"):
        monkeypatch.delattr(traces, part, raising=False)

    with capture_logs() as events:
        traces.prepare()
        traces.start("one", "1", is_global=True)
        assert traces.client_spans("1") is None

    assert [line["event"] for line in events] == ["traces_off"]
    assert "pip install 'cantata[otel]'" in events[0]["reason"]
