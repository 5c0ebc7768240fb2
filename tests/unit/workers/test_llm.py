"""Model calls through LiteLLM, over real HTTP to a scripted server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ModelError
from orchestrator.models.values import JsonValue, Usage
from orchestrator.testing import Rule, ScriptedModels, ToolCall
from workers import llm
from workers.llm.failures import Failure, Setting, explain, redact, retry_after_s, secrets_in

KEY = "sk-test-1234567890abcdef"
MODEL = "openai/gpt-4o-mini"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One event loop for all, as in a worker."""
    llm.load()
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModels]:
    with ScriptedModels() as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield server


async def ask(text: str = "one two three", *, model: str = MODEL, **options: Any) -> llm.Reply:
    return await llm.complete(model, [{"role": "user", "content": text}], **options)


def failed(run: Run, coroutine: Coroutine[Any, Any, Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        run(coroutine)
    return caught.value


def bodies(server: ScriptedModels) -> list[Any]:
    return [entry["body"] for entry in server.journal()]


def test_a_reply_has_its_text_usage_and_cost(run: Run, server: ScriptedModels) -> None:
    reply = run(ask())

    usage = Usage(input_tokens=3, output_tokens=4, cost_usd=2.85e-06, model_calls=1)  # at 0.15 and 0.60 dollars a million
    assert reply == llm.Reply(text="echo: one two three", usage=usage, model=MODEL, finish_reason="stop")


def test_the_cost_of_a_model_without_a_price_is_unknown_and_not_zero(run: Run, server: ScriptedModels) -> None:
    reply = run(ask(model="openai/a-model-of-our-own"))

    assert reply.usage.cost_usd is None
    assert reply.usage.input_tokens == 3


def test_parameters_go_to_the_model_as_they_are(run: Run, server: ScriptedModels) -> None:
    run(ask(params={"temperature": 0.25, "max_tokens": 7}))

    assert {key: bodies(server)[0].get(key) for key in ("temperature", "max_tokens", "stream")} in (
        {"temperature": 0.25, "max_tokens": 7, "stream": None},
        {"temperature": 0.25, "max_tokens": 7, "stream": False},
    )


def test_a_schema_is_asked_for_strictly(run: Run, server: ScriptedModels) -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    reply = run(ask(schema=schema))

    assert bodies(server)[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": schema},
    }
    assert set(json.loads(reply.text)) == {"n"}


def test_examples_become_turns_behind_the_system_message(run: Run, server: ScriptedModels) -> None:
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    messages: list[dict[str, JsonValue]] = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "hm"}]
    examples: list[JsonValue] = [{"text": "yes!", "label": "good"}, {"text": "no", "label": {"mood": "bad"}}]

    run(llm.complete(MODEL, messages, params={"examples": examples}, schema=schema))

    turns = [(message["role"], message["content"]) for message in bodies(server)[0]["messages"]]
    assert turns == [
        ("system", "Judge."),
        ("user", "yes!"), ("assistant", '{"mood": "good"}'),
        ("user", "no"), ("assistant", '{"mood": "bad"}'),
        ("user", "hm"),
    ]  # fmt: skip


def test_an_example_that_is_none_is_told(run: Run, server: ScriptedModels) -> None:
    error = failed(run, ask(params={"examples": [{"input": "yes!"}]}))

    assert (error.code, error.retryable) == ("model_bad_request", False)
    assert "{text, label}" in str(error)


def test_tool_calls_are_in_the_reply(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(tool_calls=(ToolCall(name="add", arguments={"a": 1}),))])
    tool: JsonValue = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

    reply = run(ask(params={"tools": [tool]}))

    assert (reply.text, reply.finish_reason) == ("", "tool_calls")
    assert reply.tool_calls == ({"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},)


def test_a_hundred_calls_go_at_once(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(delay_s=0.3)])

    async def hundred() -> list[llm.Reply]:
        return await asyncio.gather(*(ask(str(number)) for number in range(100)))

    run(ask("first"))
    started = time.monotonic()
    replies = run(hundred())

    assert [reply.text for reply in replies] == [f"echo: {number}" for number in range(100)]
    assert time.monotonic() - started < 100 * 0.3 / 3


def test_a_rate_limit_tells_when_to_come_back_and_is_asked_once(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(status=429, headers={"Retry-After": "7"}, reply="slow down")])

    error = failed(run, ask())

    assert (error.code, error.retryable, error.retry_after_s) == ("rate_limited", True, 7.0)
    assert str(error) == "model 'openai/gpt-4o-mini': the provider asks to slow down (429): slow down"
    assert len(server.journal()) == 1


def test_a_failing_server_is_asked_once_and_may_answer_the_next_time(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(status=500, times=1)])

    error = failed(run, ask())
    reply = run(ask())

    assert (error.code, error.retryable) == ("model_unavailable", True)
    assert reply.text == "echo: one two three"
    assert len(server.journal()) == 2


def test_a_timeout_closes_the_connection(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(delay_s=30)])

    error = failed(run, ask(timeout_s=0.2))

    assert (error.code, error.retryable) == ("model_timeout", True)
    assert str(error) == "model 'openai/gpt-4o-mini' did not answer within 0.2 s"
    assert client_left(server)


def test_cancelling_closes_the_connection(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(delay_s=30)])

    async def cancelled() -> None:
        task = asyncio.create_task(ask())
        await asyncio.to_thread(soon, lambda: bool(server.journal()))
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        run(cancelled())

    assert client_left(server)


@pytest.mark.parametrize("rule", [Rule(disconnect=True), Rule(truncate=20)])
def test_a_cut_connection_may_be_tried_again(run: Run, server: ScriptedModels, rule: Rule) -> None:
    server.script([rule])

    error = failed(run, ask())

    assert (error.code, error.retryable) == ("model_unavailable", True)
    assert "cannot be reached" in str(error)


def test_an_empty_reply_is_a_failure(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="", finish_reason="length")])

    error = failed(run, ask())

    assert (error.code, error.retryable) == ("model_empty", True)
    assert "'length'" in str(error)


@pytest.mark.parametrize(("model", "hint"), [("opnai/gpt-4o", "did you mean 'openai/gpt-4o'?"), ("nonsense", "provider/name")])
def test_a_model_of_no_provider_is_told_with_a_hint(run: Run, server: ScriptedModels, model: str, hint: str) -> None:
    error = failed(run, ask(model=model))

    assert (error.code, error.retryable) == ("model_unknown", False)
    assert repr(model) in str(error)
    assert hint in str(error)
    assert server.journal() == []


def test_a_missing_key_is_told_by_the_name_of_its_variable(run: Run, server: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")

    error = failed(run, ask())

    assert (error.code, error.retryable) == ("model_auth", False)
    assert str(error) == "model 'openai/gpt-4o-mini' needs a key: set OPENAI_API_KEY in the environment of the agents workers"
    assert server.journal() == []


def test_no_secret_gets_into_an_error(run: Run, server: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "hunter2hunter2")
    said = f"Incorrect API key provided: {KEY}. Bearer abc.def-ghi and hunter2hunter2 at https://me:secret@host/v1, api_key=zzzzzzzz"
    server.script([Rule(status=401, reply=said)])

    error = failed(run, ask())

    assert error.code == "model_auth"
    assert error.__cause__ is None
    assert not [secret for secret in (KEY, "abc.def", "hunter2", "me:secret", "zzzz") if secret in str(error)], str(error)
    assert "Incorrect API key provided: ***" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_bad_request", False), (401, "model_auth", False), (403, "model_auth", False), (404, "model_unknown", False),
        (408, "model_timeout", True), (409, "model_bad_request", False), (422, "model_bad_request", False), (429, "rate_limited", True),
        (500, "model_unavailable", True), (502, "model_unavailable", True), (504, "model_timeout", True), (529, "model_unavailable", True),
    ],
)  # fmt: skip
def test_the_status_of_an_answer_tells_what_to_do(status: int, code: str, retryable: bool) -> None:
    error = explain(Failure(MODEL, "said", status, headers={"server": "x"}), Setting(), now=NOW)

    assert (error.code, error.retryable) == (code, retryable)
    assert f"({status}): said" in str(error)


def test_a_package_that_is_missing_is_not_tried_again() -> None:
    error = explain(Failure("vertex_ai/gemini", "No module named 'google'", 500, is_broken=True), Setting(), now=NOW)

    assert (error.code, error.retryable) == ("model_error", False)


def test_litellm_around_the_words_of_a_provider_is_taken_off() -> None:
    text = "litellm.Timeout: Timeout Error: OpenAIException - too late\nTraceback (most recent call last):\n  File"

    error = explain(Failure(MODEL, text, 504, headers={"server": "x"}), Setting(), now=NOW)

    assert str(error) == "model 'openai/gpt-4o-mini': the provider timed out (504): too late"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0), ("0.5", 0.5), ("-3", None), ("inf", None), ("soon", None),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90.0), ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, expected: float | None) -> None:
    assert retry_after_s({"Retry-After": value}, NOW) == expected


def test_what_is_no_secret_is_not_redacted() -> None:
    secrets = secrets_in(
        {"MAX_TOKENS": "12345678", "HOME": "/home/someone", "X_API_KEY": "short", "extra_headers": {"Authorization": "Bearer q" * 2}}
    )

    assert secrets == ["Bearer qBearer q"]
    assert (
        redact("the task-force asks to skip 12345678 risk-assessments", secrets) == "the task-force asks to skip 12345678 risk-assessments"
    )


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the extra local-llm is not installed")
def test_the_embedded_model_is_called_like_any_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_STACK_PID", str(os.getpid()))  # it ends with us
    monkeypatch.setattr(llm.load().custom_provider_map[0]["custom_handler"], "_home", tmp_path)
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"topic": {"enum": ["weather", "music"]}}, "required": ["topic"]}
    examples: list[JsonValue] = [{"text": "Will it rain?", "label": "weather"}, {"text": "Play some jazz.", "label": "music"}]

    chosen = run(ask("Is a storm coming?", model="local/smollm2", params={"examples": examples}, schema=schema))
    said = run(ask("What is the capital of France?", model="local/smollm2", params={"max_tokens": 5}))
    late = failed(run, ask("Tell me a long story.", model="local/smollm2", timeout_s=0.05))
    unknown = failed(run, ask(model="local/other"))
    os.kill(json.loads((tmp_path / "local-llm.json").read_text())["pid"], signal.SIGTERM)

    assert json.loads(chosen.text) == {"topic": "weather"}
    assert (chosen.usage.cost_usd, chosen.usage.model_calls) == (None, 1)
    assert (said.usage.output_tokens, said.finish_reason) == (5, "length")
    assert late.code == "model_timeout"
    assert unknown.code == "model_unknown"


def test_litellm_is_not_imported_before_it_is_loaded() -> None:
    code = "import sys, workers.llm; assert not {'litellm', 'httpx', 'openai', 'xllamacpp'} & set(sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)


def client_left(server: ScriptedModels) -> bool:
    """Whether the server sees soon that its client hung up."""
    return soon(lambda: bool(server.journal()[0]["client_left"]))


def soon(happened: Callable[[], bool], *, limit_s: float = 5.0) -> bool:
    """Whether something happens in time."""
    give_up = time.monotonic() + limit_s
    while not (now := happened()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return now
