"""LiteLLM's own proxy between an agent and a scripted provider: all that the provider says arrives, and what it needs is sent back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.acceptance.neighbours.environments import TOP
from tests.acceptance.others.conftest import Ask
from tests.acceptance.others.servers import HERE, litellm_proxy

pytestmark = [
    pytest.mark.whole,
    pytest.mark.thorough("replies of providers are read in unit and integration tests, without a proxy between"),
    pytest.mark.slow("LiteLLM's proxy imports for 32 s of processor time"),
    pytest.mark.timeout(900),
]
STREAMED = pytest.mark.parametrize("stream", [True, False])
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ADD = {"add": {"function": "fleet_tools:add", "description": "Adds two numbers."}}
MODELS = ["openai/gpt-4o-mini", "deepseek/deepseek-reasoner", "mistral/mistral-small-latest", "hosted_vllm/qwen3"]

Json = dict[str, Any]


class Upstream:
    """A provider with OpenAI's protocol. It answers with the messages of its script, in order, and notes the requests."""

    def __init__(self) -> None:
        self.script: list[Json] = []
        self.requests: list[Json] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                upstream.requests.append(body)
                reply = (
                    upstream.script.pop(0) if upstream.script else {"status": 500, "error": "the script is at its end"}
                )
                status, kind, text = upstream.answer(body, dict(reply))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, body: Json, message: Json) -> tuple[int, str, bytes]:
        """Return status, content type and body of a reply."""
        if "status" in message:
            return (
                message["status"],
                "application/json",
                json.dumps({"error": {"message": message["error"], **message.get("more", {})}}).encode(),
            )
        end = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        about = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": end}
            whole = {**about, "object": "chat.completion", "choices": [choice], "usage": usage}
            return 200, "application/json", json.dumps(whole).encode()
        deltas: list[Json] = [{"role": "assistant"}]
        for key, value in message.items():
            parts = (
                [value[:3], value[3:]]
                if isinstance(value, str)
                else [[{**each, "index": number}] for number, each in enumerate(value)]
            )
            deltas += [{key: part} for part in parts if part]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices += [[{"index": 0, "delta": {}, "finish_reason": end}]]
        chunks = [{**about, "object": "chat.completion.chunk", "choices": each} for each in choices]
        chunks.append({**about, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return (
            200,
            "text/event-stream",
            "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n",
        )

    def close(self) -> None:
        """Stop."""
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(scope="module")
def provider() -> Iterator[Upstream]:
    """The provider behind the proxy."""
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def proxy(provider: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the proxy, which knows a model of each of some providers."""
    models: list[Json] = [
        {
            "model_name": model.partition("/")[2],
            "litellm_params": {"model": model, "api_base": provider.url, "api_key": "sk-upstream"},
        }
        for model in MODELS
    ]
    with litellm_proxy(tmp_path_factory.mktemp("proxy"), models) as url:
        yield url


@pytest.fixture
def upstream(provider: Upstream) -> Upstream:
    """The provider, without what an earlier test left."""
    provider.script.clear()
    provider.requests.clear()
    return provider


def through(proxy: str, model: str = "gpt-4o-mini", as_: str = "openai") -> Json:
    return {"m": {"model": f"{as_}/{model}", "params": {"api_base": f"{proxy}/v1" if as_ == "openai" else proxy}}}


def call(name: str, call_id: str, **arguments: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@STREAMED
@pytest.mark.parametrize("as_", ["openai", "litellm_proxy"])
def test_a_text_arrives_with_its_usage(ask: Ask, upstream: Upstream, proxy: str, stream: bool, as_: str) -> None:
    upstream.script = [{"content": "Grüße aus der Ferne."}]

    result = ask("hello", models=through(proxy, as_=as_), stream=stream).result()

    assert result.output == "Grüße aus der Ferne."
    assert (result.usage.input_tokens, result.usage.output_tokens) == (11, 7)
    assert upstream.requests[0]["messages"][-1] == {"role": "user", "content": "hello"}


@STREAMED
def test_parallel_calls_of_tools_are_executed_and_sent_back(
    ask: Ask, upstream: Upstream, proxy: str, stream: bool
) -> None:
    calls = [call("add", "call_a", a=1, b=2), call("add", "call_b", a=3, b=4)]
    upstream.script = [{"content": "I add.", "tool_calls": calls}, {"content": "3 and 7"}]

    result = ask("add", models=through(proxy), tools=ADD, stream=stream).result()

    assert result.output == "3 and 7"
    said, *results = upstream.requests[1]["messages"][-3:]
    assert said["content"] == "I add."
    assert [each["id"] for each in said["tool_calls"]] == ["call_a", "call_b"]
    assert [(each["role"], each["tool_call_id"], each["content"]) for each in results] == [
        ("tool", "call_a", "3.0"),
        ("tool", "call_b", "7.0"),
    ]


@STREAMED
def test_an_answer_has_the_structure_of_its_schema(ask: Ask, upstream: Upstream, proxy: str, stream: bool) -> None:
    upstream.script = [{"content": '{"n": "three"}'}, {"content": '{"n": 3}'}]

    result = ask("count", models=through(proxy), output={"schema": SCHEMA}, stream=stream).result()

    assert result.output == {"n": 3}
    assert upstream.requests[0]["response_format"]["type"] == "json_schema"
    assert len(upstream.requests) == 2, "a wrong answer is corrected once"


@STREAMED
@pytest.mark.parametrize("model", ["gpt-4o-mini", "deepseek-reasoner", "qwen3"])
def test_reasoning_is_kept_out_of_the_answer_and_survives_the_tool_loop(
    ask: Ask, upstream: Upstream, proxy: str, model: str, stream: bool
) -> None:
    first = {
        "reasoning_content": "The user wants a sum.",
        "content": "",
        "tool_calls": [call("add", "call_a", a=1, b=2)],
    }
    upstream.script = [first, {"reasoning_content": "That was easy.", "content": "3"}]

    run = ask("add", models=through(proxy, model, as_="litellm_proxy"), tools=ADD, stream=stream)

    assert run.result().output == "3"
    said = next(each for each in upstream.requests[1]["messages"] if each["role"] == "assistant")
    assert [each["id"] for each in said["tool_calls"]] == ["call_a"]
    assert said.get("reasoning_content", "The user wants a sum.") == "The user wants a sum."


def test_a_refusal_ends_the_call_with_the_words_of_the_provider(ask: Ask, upstream: Upstream, proxy: str) -> None:
    upstream.script = [{"refusal": "I cannot help with that."}]

    result = ask("go", models=through(proxy), stream=False).result()

    assert result.error is not None
    assert (result.error.code, len(upstream.requests)) == ("refusal", 1)
    assert "I cannot help with that." in result.error.message


def test_a_streamed_refusal_which_the_proxy_drops_is_an_empty_reply(ask: Ask, upstream: Upstream, proxy: str) -> None:
    upstream.script = [{"refusal": "I cannot help with that."}]

    result = ask("go", models=through(proxy), stream=True).result()

    assert result.error is not None
    assert (result.error.code, len(upstream.requests)) == ("model_empty", 1)


@STREAMED
def test_a_filter_ends_the_call(ask: Ask, upstream: Upstream, proxy: str, stream: bool) -> None:
    upstream.script = [{"content": "", "finish_reason": "content_filter"}]

    result = ask("go", models=through(proxy), stream=stream).result()

    assert result.error is not None
    assert (result.error.code, len(upstream.requests)) == ("content_filter", 1)


@pytest.mark.parametrize(
    ("status", "more", "code"),
    [
        (400, {}, "model_bad_request"),
        (401, {}, "model_auth"),
        (400, {"code": "context_length_exceeded"}, "model_context"),
        (429, {}, "rate_limited"),
        (
            429,
            {"code": "insufficient_quota", "type": "insufficient_quota"},
            "rate_limited",
        ),  # the proxy drops code and type
        (503, {}, "model_unavailable"),
    ],
)
def test_errors_of_the_provider_keep_their_meaning(
    ask: Ask, upstream: Upstream, proxy: str, status: int, more: Json, code: str
) -> None:
    text = (
        "You exceeded your current quota"
        if "type" in more
        else "This model's maximum context length is 9 tokens"
        if more
        else "no luck"
    )
    upstream.script = [{"status": status, "error": text, "more": more}] * 9

    result = ask("go", models=through(proxy)).result()

    assert result.error is not None
    assert result.error.code == code, result.error.message
    assert text in result.error.message


def test_the_page_names_the_version_that_is_run() -> None:
    (version,) = re.findall(r"^litellm==(\S+)", (HERE / "litellm-proxy.lock").read_text(), re.MULTILINE)

    assert f"`litellm[proxy]` {version}" in (TOP / "docs" / "models.md").read_text()
