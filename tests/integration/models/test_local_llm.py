"""The embedded model itself, and the life of its server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cantata.errors import ModelError
from cantata.operation.embedded.process_identity import identify
from cantata.values import JsonValue
from cantata_workers.models.local import model_server
from cantata_workers.models.local.labels import CONTENT_FREE
from cantata_workers.models.local.provider import Provider

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="the extra local-llm is not installed"
)


def tool(name: str, description: str) -> JsonValue:
    parameters: JsonValue = {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "the number of the order"},
            "note": {"type": "string"},
        },
        "required": ["order_id"],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


STATUS = tool("orders__status", "Looks up where an order is.")
REFUND = tool("refund", "Pays an order back.")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose server ends with these tests, even if they are killed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANTATA_STACK_PID", str(os.getpid()))
        yield home
    end(home)


@pytest.mark.thorough("a model is loaded again and again")
def test_many_who_need_the_server_at_once_start_one(home: Path) -> None:
    code = (
        "import sys, pathlib; from cantata_workers.models.local import model_server\n"
        "print(model_server.ensure_server(pathlib.Path(sys.argv[1])).pid)"
    )

    with ThreadPoolExecutor(6) as pool:
        here = [pool.submit(lambda: model_server.ensure_server(home).pid) for _ in range(3)]
        there = [
            pool.submit(subprocess.check_output, [sys.executable, "-c", code, str(home)], text=True) for _ in range(3)
        ]
        pids = {each.result() for each in here} | {int(each.result()) for each in there}

    assert len(pids) == 1
    assert oct((home / "local-llm.json").stat().st_mode & 0o777) == "0o600"


def test_it_answers_in_words_and_always_the_same(home: Path) -> None:
    first, second = (
        answer(home, [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}])
        for _ in range(2)
    )

    assert "Paris" in content(first)
    assert content(first) == content(second)
    assert first["usage"]["prompt_tokens"] > 10
    assert first["choices"][0]["finish_reason"] == "stop"


def test_a_schema_binds_what_it_writes(home: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "n": {"type": "integer", "maximum": 9}},
    }
    schema["required"] = ["city", "n"]

    said = json.loads(content(answer(home, [{"role": "user", "content": "Name a city."}], schema=schema)))

    assert isinstance(said["city"], str)
    assert isinstance(said["n"], int)


@pytest.mark.slow("the embedded model computes")
def test_labels_are_chosen_by_examples(home: Path) -> None:
    examples = [
        ("Will it rain tomorrow?", "weather"), ("Play some jazz.", "music"), ("How long do I boil an egg?", "cooking"),
        ("How cold does it get tonight?", "weather"), ("Skip this song.", "music"), ("Give me a recipe for soup.", "cooking"),
    ]  # fmt: skip
    asked = ["Is a storm coming?", "Turn the volume down a little.", "What can I use instead of butter?"]

    replies = [
        answer(
            home, [*turns(examples), {"role": "user", "content": text}], schema=one_of("weather", "music", "cooking")
        )
        for text in asked
    ]

    assert [json.loads(content(reply)) for reply in replies] == [
        {"label": "weather"},
        {"label": "music"},
        {"label": "cooking"},
    ]
    assert replies[0]["usage"]["completion_tokens"] == 1 + len(CONTENT_FREE)


@pytest.mark.thorough("the model computes for seconds; how labels are scored is held by unit/workers")
def test_labels_that_begin_alike_are_told_apart(home: Path) -> None:
    examples = [
        ("Will it rain tomorrow?", "it_weather"),
        ("Play some jazz.", "it_music"),
        ("Is it windy?", "it_weather"),
        ("Next song.", "it_music"),
    ]

    replies = [
        answer(home, [*turns(examples), {"role": "user", "content": text}], schema=one_of("it_weather", "it_music"))
        for text in ("Is a storm coming?", "Play it louder.")
    ]

    assert [json.loads(content(reply))["label"] for reply in replies] == ["it_weather", "it_music"]


@pytest.mark.slow("the embedded model computes")
def test_it_calls_a_tool_with_arguments_from_the_message_and_tells_the_result(home: Path) -> None:
    asked: list[dict[str, JsonValue]] = [{"role": "user", "content": "Has order A-1042 been shipped yet?"}]

    call = answer(home, asked, tools=[STATUS, REFUND])["choices"][0]
    (called,) = call["message"]["tool_calls"]
    results: list[dict[str, JsonValue]] = [
        call["message"],
        {"role": "tool", "tool_call_id": called["id"], "content": "shipped on Monday"},
    ]
    said = answer(home, [*asked, *results], tools=[STATUS, REFUND])

    assert (call["finish_reason"], call["message"]["content"]) == ("tool_calls", None)
    assert called["function"]["name"] == "orders__status"
    assert json.loads(called["function"]["arguments"]) == {"order_id": "A-1042"}
    assert "Monday" in content(said)


@pytest.mark.thorough("the model computes for seconds; the test above has it call a tool")
def test_it_calls_no_tool_for_small_talk_unless_it_must(home: Path) -> None:
    asked: list[dict[str, JsonValue]] = [{"role": "user", "content": "Hello!"}]
    no_arguments: JsonValue = {
        "type": "function",
        "function": {"name": "now", "description": "Tells the time.", "parameters": {}},
    }

    talk = answer(home, asked, tools=[STATUS, REFUND])
    forced = answer(home, asked, tools=[no_arguments], tool_choice="required")

    assert content(talk)
    assert "tool_calls" not in talk["choices"][0]["message"] or not talk["choices"][0]["message"]["tool_calls"]
    assert forced["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize(
    ("model", "options", "code", "words"),
    [
        ("other", {}, "model_unknown", "'local/smollm2'"),
        ("smollm2", {"long": True}, "model_bad_request", "2048 tokens"),
    ],
)
def test_what_it_cannot_do_is_told(home: Path, model: str, options: dict[str, Any], code: str, words: str) -> None:
    text = "word " * 3000 if options.pop("long", False) else "hi"

    with pytest.raises(ModelError, match=words) as caught:
        answer(home, [{"role": "user", "content": text}], model=model, **options)

    assert (caught.value.code, caught.value.retryable) == (code, False)


@pytest.mark.thorough("a model is loaded again")
def test_a_killed_server_is_started_again(home: Path) -> None:
    killed = end(home)

    reply = answer(home, [{"role": "user", "content": "Say hello."}])

    assert content(reply)
    assert model_server.ensure_server(home).pid != killed


@pytest.mark.slow("the embedded model computes")
def test_it_ends_with_its_stack_and_when_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stack:
        monkeypatch.setenv("CANTATA_STACK_PID", str(stack.pid))
        of_stack = model_server.ensure_server(tmp_path / "stack").pid
        assert stack.stdin
        stack.stdin.close()
    monkeypatch.setenv("CANTATA_STACK_PID", str(os.getpid()))
    idle = subprocess.run(
        [sys.executable, "-m", "cantata_workers.models.local", "--home", str(tmp_path / "idle"), "--idle-s", "0.1"],
        check=True,
    )

    assert idle.returncode == 0
    assert soon(lambda: identify(of_stack) is None)
    assert not (tmp_path / "stack" / "local-llm.json").exists()


@pytest.mark.thorough("a model is loaded; its end without requests is the test above")
def test_it_ends_with_its_stack_though_requests_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stack:
        monkeypatch.setenv("CANTATA_STACK_PID", str(stack.pid))
        address = model_server.ensure_server(tmp_path)
        with socket.create_connection(
            (urlsplit(address.url).hostname or "", urlsplit(address.url).port or 0)
        ) as client:
            body = json.dumps({"prompt": "Once", "n_predict": 1500, "ignore_eos": True}).encode()
            head = f"POST /completion HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {address.key}\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            assert stack.stdin
            stack.stdin.close()
            client.settimeout(60)
            with suppress(ConnectionResetError):  # it ended before it had read the request
                assert client.recv(100) == b""
    assert soon(lambda: identify(address.pid) is None)


def answer(
    home: Path, messages: list[dict[str, JsonValue]], *, model: str = "smollm2", schema: Any = None, **options: Any
) -> dict[str, Any]:
    """The provider's reply, as a dict where LiteLLM would have its own class."""
    if schema:
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    reply = Provider(home).acompletion(model, messages, model_response={}, optional_params=options)
    return dict(asyncio.run(reply))


def content(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def one_of(*labels: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"label": {"enum": list(labels)}}, "required": ["label"]}


def turns(examples: list[tuple[str, str]]) -> list[dict[str, JsonValue]]:
    return [
        {"role": role, "content": said}
        for text, label in examples
        for role, said in (("user", text), ("assistant", label))
    ]


def end(home: Path) -> int:
    """Kill the server of a home, hard."""
    pid = int(json.loads((home / "local-llm.json").read_text())["pid"])
    os.kill(pid, 9)
    assert soon(lambda: identify(pid) is None)
    return pid


def soon(happened: Callable[[], bool], *, limit_s: float = 40.0) -> bool:
    """Whether something happens in time."""
    deadline = time.monotonic() + limit_s
    while not (now := happened()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now
