"""Model calls through LiteLLM, over real HTTP to a scripted server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cantata.errors import ModelError
from cantata.testing import Rule, ScriptedModels
from cantata.testing import ToolCall as Scripted
from cantata.values import JsonValue, ToolCallRequest, ToolSchema, Usage
from cantata_workers.models import llm
from tests.integration.model_upstream import Cell, upstream

KEY = "sk-test-1234567890abcdef"
MODEL = "openai/gpt-4o-mini"

TOOLS = (
    ToolSchema(
        name="files.read",
        description="Reads a file.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
    ),
    ToolSchema(name="files__read", parameters={}),
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]

each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


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


def streaming(stream: bool) -> dict[str, Any]:
    return {"on_delta": lambda text: None} if stream else {}


def called(call_id: str, name: str, arguments: str) -> JsonValue:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.slow("LiteLLM is imported")
@each_way
def test_the_hook_is_called_when_a_request_starts(run: Run, server: ScriptedModels, stream: bool) -> None:
    server.script([Rule(reply="hello", delay_s=0.3)])
    left: list[float] = []

    async def leaves() -> None:
        left.append(time.time())

    async def ask_once() -> None:
        with llm.on_request_start(leaves):
            await ask(**streaming(stream))
        await ask()

    run(ask_once())

    first = server.journal()[0]
    assert len(left) == 1, "of what is asked within, and of nothing else"
    assert left[0] <= float(str(first["until"])) - 0.3, "not when its answer came"


def bodies(server: ScriptedModels) -> list[Any]:
    return [entry["body"] for entry in server.journal()]


def test_a_reply_has_its_text_usage_and_cost(run: Run, server: ScriptedModels) -> None:
    reply = run(ask())

    usage = Usage(
        input_tokens=3, output_tokens=4, cost_usd=2.85e-06, model_calls=1
    )  # at 0.15 and 0.60 dollars a million
    assert reply == llm.Reply(text="echo: one two three", usage=usage, model=MODEL, finish_reason="stop")


def test_the_cost_of_a_model_without_a_price_is_unknown_and_not_zero(run: Run, server: ScriptedModels) -> None:
    reply = run(ask(model="openai/a-model-of-our-own"))

    assert reply.usage.cost_usd is None
    assert reply.usage.input_tokens == 3


def test_the_usage_of_a_reply_that_reports_none_is_estimated_and_not_zero(
    run: Run, server: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cantata.testing.answers._usage", lambda *_: {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    )

    reply = run(ask())

    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    assert reply.usage.cost_usd


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
        "json_schema": {"name": "answer", "strict": True, "schema": {**schema, "additionalProperties": False}},
    }
    assert set(json.loads(reply.text)) == {"n"}


def test_examples_become_turns_behind_the_system_message(run: Run, server: ScriptedModels) -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
    }
    messages: list[dict[str, JsonValue]] = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "hm"}]
    examples: list[JsonValue] = [{"text": "yes!", "label": "good"}, {"text": "no", "label": {"mood": "bad"}}]

    run(llm.complete(MODEL, messages, params={"examples": examples}, schema=schema))

    turns = [(message["role"], message["content"]) for message in bodies(server)[0]["messages"]]
    assert turns == [
        ("system", "Judge."),
        ("user", "yes!"),
        ("assistant", '{"mood": "good"}'),
        ("user", "no"),
        ("assistant", '{"mood": "bad"}'),
        ("user", "hm"),
    ]


def test_an_invalid_example_is_reported(run: Run, server: ScriptedModels) -> None:
    error = failed(run, ask(params={"examples": [{"input": "yes!"}]}))

    assert (error.code, error.retryable) == ("model_bad_request", False)
    assert "{text, label}" in str(error)


@each_way
def test_tools_are_sent_and_called_under_names_that_providers_take(
    run: Run, server: ScriptedModels, stream: bool
) -> None:
    wire = "files__read_601e4eb6"  # files__read is taken
    calls = [Scripted(name=wire, arguments={"path": "a"}), Scripted(name="files__read"), Scripted(name="unheard.of")]
    server.script([Rule(reply="I look.", tool_calls=tuple(calls))])

    reply = run(ask(tools=TOOLS, tool_choice="files.read", **streaming(stream)))

    function = {
        "name": wire,
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    assert bodies(server)[0]["tools"][0] == {"type": "function", "function": function}
    assert bodies(server)[0]["tools"][1]["function"] == {
        "name": "files__read",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    assert bodies(server)[0]["tool_choice"] == {"type": "function", "function": {"name": wire}}
    assert (reply.text, reply.finish_reason) == ("I look.", "tool_calls")
    assert reply.tool_calls == (
        ToolCallRequest(id="call_0", name="files.read", arguments='{"path": "a"}'),
        ToolCallRequest(id="call_1", name="files__read", arguments="{}"),
        ToolCallRequest(id="call_2", name="unheard.of", arguments="{}"),
    )


@each_way
def test_calls_without_a_name_or_with_broken_arguments_are_sent_as_they_are(
    run: Run, server: ScriptedModels, stream: bool
) -> None:
    calls = [
        Scripted(name=None, arguments="{not json"),
        Scripted(name="", id=None, arguments=""),
        Scripted(name="files__read", id="call_0"),
    ]
    server.script([Rule(tool_calls=tuple(calls))])

    reply = run(ask(tools=TOOLS, **streaming(stream)))

    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("", "{not json"),
        ("", "{}"),
        ("files__read", "{}"),
    ]
    assert len({call.id for call in reply.tool_calls}) == 3
    assert all(call.id for call in reply.tool_calls)


def test_earlier_calls_are_sent_in_a_form_that_every_provider_accepts(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(after_tools=2, tool_calls=(Scripted(name="files__read_601e4eb6", id="a"),))])
    asked = [("a", "files.read", '{"path": "x"}'), ("b", "", "{not json")]
    messages: list[dict[str, JsonValue]] = [
        {"role": "user", "content": "read x"},
        {"role": "assistant", "content": None, "tool_calls": [called(*each) for each in asked]},
        {"role": "tool", "tool_call_id": "a", "name": "files.read", "content": "the text"},
        {"role": "tool", "tool_call_id": "b", "content": "there is no such tool"},
    ]

    reply = run(llm.complete(MODEL, messages, tools=TOOLS))

    _, assistant, result, _ = bodies(server)[0]["messages"]
    assert [each["function"] for each in assistant["tool_calls"]] == [
        {"name": "files__read_601e4eb6", "arguments": '{"path": "x"}'},
        {"name": "unknown_function", "arguments": '{"invalid": "{not json"}'},
    ]
    assert result["name"] == "files__read_601e4eb6"
    assert reply.tool_calls == (ToolCallRequest(id="call_2", name="files.read"),)  # the id `a` is taken


@each_way
def test_an_empty_reply_may_be_allowed(run: Run, server: ScriptedModels, stream: bool) -> None:
    server.script([Rule(reply="")])

    reply = run(ask(allow_empty=True, **streaming(stream)))

    assert (reply.text, reply.tool_calls, reply.usage.model_calls) == ("", (), 1)


# Streams


def test_a_stream_gives_the_text_in_pieces_and_the_same_reply(run: Run, server: ScriptedModels) -> None:
    server.script(
        [Rule(reply="one two three", tool_calls=(Scripted(name="files__read", arguments={"path": "a longer path"}),))]
    )
    pieces: list[str] = []

    whole = run(ask(tools=TOOLS))
    streamed = run(ask(tools=TOOLS, on_delta=pieces.append))

    assert pieces == ["one ", "two ", "three"]
    assert streamed == whole
    assert streamed.usage.cost_usd
    assert bodies(server)[1]["stream_options"] == {"include_usage": True}


def test_each_piece_is_given_as_soon_as_it_comes(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="one two", chunk_delay_s=0.2)])
    run(ask())
    times: list[float] = []

    run(ask(on_delta=lambda text: times.append(time.time())))

    begun = server.journal()[-1]["at"]
    assert isinstance(begun, float)
    assert times[0] - begun < 0.4 < times[1] - begun < 0.6  # the pieces after the first empty one come 0.2 s apart


@pytest.mark.parametrize(
    "rule", [Rule(reply="one two three", truncate=600), Rule(reply="one two three", finish_reason="")]
)
def test_a_stream_that_breaks_off_may_be_tried_again(run: Run, server: ScriptedModels, rule: Rule) -> None:
    server.script([rule])
    pieces: list[str] = []

    error = failed(run, ask(on_delta=pieces.append))

    assert pieces[0] == "one "
    assert (error.code, error.retryable) == ("model_unavailable", True)
    assert "the answer broke off" in str(error)
    assert len(server.journal()) == 1


def test_cancelling_a_stream_closes_the_connection(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="one two three", chunk_delay_s=3)])

    async def cancelled() -> None:
        first = asyncio.Event()
        task = asyncio.create_task(ask(on_delta=lambda text: first.set()))
        await first.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        run(cancelled())

    assert client_left(server)


def test_a_stream_that_takes_too_long_is_closed(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="one two three", chunk_delay_s=3)])

    error = failed(run, ask(timeout_s=0.3, on_delta=len))

    assert (error.code, error.retryable) == ("model_timeout", True)
    assert client_left(server)


def test_an_error_of_who_takes_the_pieces_is_theirs_and_ends_the_stream(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="one two three", chunk_delay_s=3)])

    def fail(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError, match="one"):
        run(ask(on_delta=fail))

    assert client_left(server)


def test_a_hundred_calls_go_at_once(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(delay_s=0.3)])

    async def hundred() -> list[llm.Reply]:
        return await asyncio.gather(*(ask(str(number)) for number in range(100)))

    run(ask("first"))
    started = time.monotonic()
    replies = run(hundred())

    assert [reply.text for reply in replies] == [f"echo: {number}" for number in range(100)]
    assert time.monotonic() - started < 100 * 0.3 * 0.8


@each_way
def test_a_rate_limit_has_its_retry_time_and_one_request(run: Run, server: ScriptedModels, stream: bool) -> None:
    server.script([Rule(status=429, headers={"Retry-After": "7"}, reply="slow down")])

    error = failed(run, ask(**streaming(stream)))

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

    error = failed(run, ask(timeout_s=0.5))

    assert (error.code, error.retryable) == ("model_timeout", True)
    assert str(error) == "model 'openai/gpt-4o-mini' did not answer within 0.5 s"
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


@pytest.mark.parametrize("rule", [Rule(disconnect=True), Rule(truncate=0)])
@each_way
def test_a_cut_connection_may_be_tried_again(run: Run, server: ScriptedModels, rule: Rule, stream: bool) -> None:
    server.script([rule])

    error = failed(run, ask(**streaming(stream)))

    assert (error.code, error.retryable) == ("model_unavailable", True)
    assert f"the provider at {server.url.split('/')[2]} cannot be reached" in str(error)


@pytest.mark.parametrize("reason", ["error", "network_error"])
@each_way
def test_an_answer_during_which_the_provider_failed_is_no_answer(
    run: Run, server: ScriptedModels, stream: bool, reason: str
) -> None:
    server.script([Rule(reply="one two", finish_reason=reason)])

    error = failed(run, ask(**streaming(stream)))

    assert (error.code, error.retryable) == ("model_unavailable", True)


def test_an_empty_reply_is_a_failure(run: Run, server: ScriptedModels) -> None:
    server.script([Rule(reply="", finish_reason="length")])

    error = failed(run, ask())

    assert (error.code, error.retryable) == ("model_empty", True)
    assert "'length'" in str(error)


@pytest.mark.parametrize(
    ("model", "hint"), [("opnai/gpt-4o", "did you mean 'openai/gpt-4o'?"), ("nonsense", "provider/name")]
)
def test_a_model_without_provider_is_reported_with_a_hint(
    run: Run, server: ScriptedModels, model: str, hint: str
) -> None:
    error = failed(run, ask(model=model))

    assert (error.code, error.retryable) == ("model_unknown", False)
    assert repr(model) in str(error)
    assert hint in str(error)
    assert server.journal() == []


def test_a_missing_key_is_reported_by_the_name_of_its_variable(
    run: Run, server: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")

    error = failed(run, ask())

    assert (error.code, error.retryable) == ("model_auth", False)
    assert (
        str(error)
        == "model 'openai/gpt-4o-mini' needs a key: set OPENAI_API_KEY in the environment of the agents workers"
    )
    assert server.journal() == []


@each_way
def test_no_secret_gets_into_an_error(
    run: Run, server: ScriptedModels, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "hunter2hunter2")
    said = f"Incorrect API key provided: {KEY}. Bearer abc.def-ghi and hunter2hunter2 at https://me:secret@host/v1, api_key=zzzzzzzz"
    server.script([Rule(status=401, reply=said)])

    error = failed(run, ask(**streaming(stream)))

    assert error.code == "model_auth"
    assert error.__cause__ is None
    assert not [secret for secret in (KEY, "abc.def", "hunter2", "me:secret", "zzzz") if secret in str(error)], str(
        error
    )
    assert "Incorrect API key provided: ***" in str(error)


@pytest.mark.thorough("a model is loaded; the tests of models/test_local_llm.py call it too")
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the extra local-llm is not installed")
def test_the_embedded_model_is_called_like_any_other(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_STACK_PID", str(os.getpid()))  # it ends with us
    monkeypatch.setattr(llm.load().custom_provider_map[0]["custom_handler"], "_home", tmp_path)
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"topic": {"enum": ["weather", "music"]}},
        "required": ["topic"],
    }
    examples: list[JsonValue] = [
        {"text": "Will it rain?", "label": "weather"},
        {"text": "Play some jazz.", "label": "music"},
    ]

    chosen = run(ask("Is a storm coming?", model="local/smollm2", params={"examples": examples}, schema=schema))
    said = run(ask("What is the capital of France?", model="local/smollm2", params={"max_tokens": 5}))
    pieces: list[str] = []
    streamed = run(
        ask("What is the capital of France?", model="local/smollm2", params={"max_tokens": 5}, on_delta=pieces.append)
    )
    calling = run(
        ask(
            "Read the file notes.txt",
            model="local/smollm2",
            tools=TOOLS[:1],
            tool_choice="required",
            on_delta=pieces.append,
        )
    )
    late = failed(run, ask("Tell me a long story.", model="local/smollm2", timeout_s=0.05))
    unknown = failed(run, ask(model="local/other"))
    os.kill(json.loads((tmp_path / "local-llm.json").read_text())["pid"], signal.SIGTERM)

    assert json.loads(chosen.text) == {"topic": "weather"}
    assert (chosen.usage.cost_usd, chosen.usage.model_calls) == (None, 1)
    assert (said.usage.output_tokens, said.finish_reason) == (5, "length")
    assert (pieces, streamed) == ([said.text], said)
    assert [(call.name, json.loads(call.arguments)) for call in calling.tool_calls] == [
        ("files.read", {"path": "notes.txt"})
    ]
    assert late.code == "model_timeout"
    assert unknown.code == "model_unknown"


def client_left(server: ScriptedModels) -> bool:
    """Whether the server sees soon that its client hung up."""
    return soon(lambda: any(entry["client_left"] for entry in server.journal()))


def soon(happened: Callable[[], bool], *, limit_s: float = 40.0) -> bool:
    """Whether something happens in time."""
    give_up = time.monotonic() + limit_s
    while not (now := happened()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return now


@each_way
def test_a_refusal_is_one_where_litellms_proxy_puts_it(run: Run, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    message = {"content": None, "provider_specific_fields": {"refusal": "I cannot help with that."}}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    turn = {
        "whole": {
            **whole,
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        },
        "stream": [
            {
                **whole,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": message, "finish_reason": None}],
            },
            {
                **whole,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            },
        ],
    }
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with upstream() as server:
        server.answer_with(cast(Cell, SimpleNamespace(turns=[turn], refused=(), wire="data")))
        monkeypatch.setenv("OPENAI_API_BASE", f"{server.url}/v1")

        error = failed(run, ask(**streaming(stream)))

    assert error.code == "refusal"
    assert "I cannot help with that." in str(error)
