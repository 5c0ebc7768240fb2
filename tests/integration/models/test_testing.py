"""The scripted model server, over real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cantata.testing import Rule, ScriptedModels, ToolCall
from cantata.testing.__main__ import main as serve


@pytest.fixture
def server() -> Iterator[ScriptedModels]:
    with ScriptedModels() as server:
        yield server


def post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


def ask(server: ScriptedModels, text: str, **more: object) -> Any:
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}], **more}
    return post(f"{server.url}/chat/completions", body)


def converse(server: ScriptedModels, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that follows."""
    return dict(post(f"{server.url}/chat/completions", {"model": "m", "messages": messages})["choices"][0]["message"])


def said(server: ScriptedModels, text: str, **more: object) -> str:
    content = ask(server, text, **more)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def events(server: ScriptedModels, text: str, **more: object) -> list[str]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, **more}
    request = urllib.request.Request(
        f"{server.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]


def schema_format(schema: Mapping[str, object]) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_without_rules_the_prompt_is_echoed_with_its_usage(server: ScriptedModels) -> None:
    answer = ask(server, "one two three")

    assert answer["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "echo: one two three"},
        "finish_reason": "stop",
    }
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_the_echo_of_a_schema_is_a_value_of_it_and_always_the_same(server: ScriptedModels) -> None:
    schema = {
        "type": "object",
        "properties": {
            "label": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "n": {"type": "integer"},
        },
        "$defs": {"tag": {"type": "string"}},
    }

    first, second = (json.loads(said(server, "hello", response_format=schema_format(schema))) for _ in range(2))

    assert first == second
    assert first["label"] in {"a", "b"}
    assert isinstance(first["tags"][0], str)
    assert isinstance(first["n"], int)


def test_the_first_rule_that_fits_and_has_uses_left_answers(server: ScriptedModels) -> None:
    server.script(
        [Rule(reply="once", times=1), Rule(match="capital of \\w+", reply="Paris"), Rule(model="gpt", reply={"any": 1})]
    )

    assert [said(server, "The capital of France?"), said(server, "The capital of France?")] == ["once", "Paris"]
    assert json.loads(said(server, "And else?")) == {"any": 1}
    assert [entry["rule"] for entry in server.journal()] == [0, 1, 2]


def test_tool_calls_are_sent_as_a_model_sends_them(server: ScriptedModels) -> None:
    server.script(
        [Rule(tool_calls=(ToolCall(name="add", arguments={"a": 1}), ToolCall(name="odd", arguments="{not json")))]
    )

    choice = ask(server, "add")["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "odd", "arguments": "{not json"},
    ]


def test_a_stream_comes_in_pieces_and_ends_with_the_usage(server: ScriptedModels) -> None:
    server.script([Rule(reply="one two", chunk_delay_s=0.001)])

    *pieces, end = events(server, "hi", stream_options={"include_usage": True})

    deltas = [json.loads(piece) for piece in pieces]
    assert end == "[DONE]"
    assert [choice["delta"].get("content") for delta in deltas for choice in delta["choices"]] == [
        "",
        "one ",
        "two",
        None,
    ]
    assert deltas[-1]["usage"]["completion_tokens"] == 2


def test_a_truncated_stream_has_no_end(server: ScriptedModels) -> None:
    server.script([Rule(reply="one two three", truncate=300)])

    with pytest.raises(http.client.IncompleteRead) as caught:
        events(server, "hi")

    assert b"[DONE]" not in caught.value.partial
    assert 0 < len(caught.value.partial) <= 300


def test_a_stream_has_tool_calls_bit_by_bit(server: ScriptedModels) -> None:
    calls = (ToolCall(name="add", arguments={"first": 1, "second": 2}), ToolCall(name=None, id=None, arguments="{bad"))
    server.script([Rule(reply="hm", tool_calls=calls)])

    *pieces, _ = events(server, "hi")

    deltas = [piece for event in pieces for piece in json.loads(event)["choices"][0]["delta"].get("tool_calls", [])]
    heads = [delta for delta in deltas if "type" in delta]
    assert heads == [
        {"index": 0, "id": "call_0", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 1, "type": "function", "function": {"arguments": ""}},
    ]
    assert (
        "".join(delta["function"]["arguments"] for delta in deltas if delta["index"] == 0)
        == '{"first": 1, "second": 2}'
    )
    assert len(deltas) > 4


def test_a_stream_may_end_without_saying_why(server: ScriptedModels) -> None:
    server.script([Rule(reply="one", finish_reason="")])

    *pieces, end = events(server, "hi")

    assert end == "[DONE]"
    assert {choice["finish_reason"] for piece in pieces for choice in json.loads(piece)["choices"]} == {None}


def test_a_loop_of_tool_calls_is_scripted_by_the_results_so_far(server: ScriptedModels) -> None:
    script = [
        {"after_tools": 0, "tool_calls": [{"name": "look"}]},
        {"after_tools": 1, "tool_calls": [{"name": "look"}, {"name": "add"}]},
        {"after_tools": 3, "reply": "done"},
    ]
    server.script(script)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    ids: list[str] = []

    while calls := (message := converse(server, messages)).get("tool_calls"):
        ids += [call["id"] for call in calls]
        messages += [message, *({"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls)]

    assert message["content"] == "done"
    assert ids == ["call_0", "call_1", "call_2"]


def test_a_fault_has_its_status_headers_and_message(server: ScriptedModels) -> None:
    server.script([Rule(status=429, headers={"Retry-After": "7"}, reply="slow down")])

    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, "hi")

    assert (caught.value.code, caught.value.headers["Retry-After"]) == (429, "7")
    assert json.loads(caught.value.read())["error"]["message"] == "slow down"
    caught.value.close()


@pytest.mark.parametrize("rule", [Rule(disconnect=True), Rule(truncate=10)])
def test_a_cut_connection_is_no_answer(server: ScriptedModels, rule: Rule) -> None:
    server.script([rule])

    with pytest.raises((ConnectionError, http.client.IncompleteRead)):
        ask(server, "hi")


def test_the_journal_has_every_request_in_order_and_over_http(server: ScriptedModels) -> None:
    before = time.time()
    ask(server, "first")
    ask(server, "second", temperature=0.5)

    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/journal", timeout=10) as response:
        journal = json.loads(response.read())

    assert journal == server.journal()
    assert [entry["text"] for entry in journal] == ["first", "second"]
    assert journal[1]["body"]["temperature"] == 0.5
    assert before <= journal[0]["at"] <= journal[1]["at"] <= time.time()
    assert all(entry["at"] <= entry["until"] for entry in journal)


def test_the_journal_has_durations_and_closed_connections(server: ScriptedModels) -> None:
    server.script([Rule(match="slow", delay_s=0.1), Rule(match="hang up", reply="one two", chunk_delay_s=5)])

    ask(server, "slow")
    with socket.create_connection(("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))) as client:
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hang up"}]}).encode()
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        under_way = server.journal()[1]

    assert soon(lambda: bool(server.journal()[1]["client_left"] and server.journal()[1]["until"]))
    slow, left = server.journal()
    assert 0.1 <= float(str(slow["until"])) - float(str(slow["at"])) < 1
    assert (slow["client_left"], under_way["until"], under_way["client_left"]) == (False, None, False)
    assert float(str(left["until"])) - float(str(left["at"])) < 5


def test_a_streamed_answer_is_over_in_the_journal_when_its_client_has_the_last_piece(server: ScriptedModels) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()

    for _ in range(50):
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.url}/chat/completions", body), timeout=10
        ) as response:
            assert any(line == b"data: [DONE]\n" for line in response)  # clients read no further
            assert server.journal()[-1]["until"]


def test_a_script_is_replaced_over_http_and_a_bad_one_is_refused(server: ScriptedModels) -> None:
    url = server.url.removesuffix("/v1") + "/script"

    assert post(url, [{"reply": "new"}]) == {"rules": 1}
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        post(url, [{"replay": "new"}])

    caught.value.close()
    assert said(server, "hi") == "new"


def test_a_pattern_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        Rule(match="(")


def test_two_hundred_clients_are_answered_at_once(server: ScriptedModels) -> None:
    server.script([Rule(reply="ok", delay_s=1)])

    with ThreadPoolExecutor(200) as pool:
        since = time.monotonic()
        answers = list(pool.map(lambda number: said(server, str(number)), range(200)))

    assert answers == ["ok"] * 200
    assert time.monotonic() - since < 60  # 1.3 s on two idle cores, and one after the other 200 s


def test_as_a_process_it_prints_its_address_and_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- {match: hi, reply: hello}\n")
    parent_code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", parent_code, sys.executable, "-m", "cantata.testing", str(script)]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid, url = int(parent.stdout.readline()), parent.stdout.readline().strip()
        answer = post(f"{url}/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        parent.kill()

    assert answer["choices"][0]["message"]["content"] == "hello"
    assert gone_within(pid, 40)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, ": this file does not exist"),
        ("- {match: hi\n", ": line 2: "),
        (
            "- {match: hi}\n- {replay: hello}\n",
            ": line 2: rules[1].replay: unknown key 'replay'; did you mean 'reply'?",
        ),
        (
            "- tool_calls:\n  - {nam: x}\n",
            ": line 2: rules[0].tool_calls[0].nam: unknown key 'nam'; did you mean 'name'?",
        ),
        ("- {match: '('}\n", ": line 1: rules[0].match: '(' is not a regular expression: "),
        ("- {times: often}\n", ": line 1: rules[0].times: expected a whole number, found 'often'"),
        ("match: hi\n", ": line 1: rules: expected a list, found a mapping"),
    ],
)
def test_faults_of_a_script_name_its_line_and_rule(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.yaml"
    if text is not None:
        script.write_text(text)

    assert serve([str(script)]) == 2
    assert capsys.readouterr().err.startswith(f"{script}{message}")


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedModels() as server:
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        assert serve(["--port", port]) == 2
    assert (
        capsys.readouterr().err
        == f"port {port} of 127.0.0.1 cannot be listened on: Address already in use; name another with --port or --host\n"
    )


def soon(happened: Callable[[], bool], *, limit_s: float = 40.0) -> bool:
    """Whether something happens in time."""
    give_up = time.monotonic() + limit_s
    while not (now := happened()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return now


def gone_within(pid: int, limit_s: float) -> bool:
    """Whether a process that is not our child ends in time."""
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if (
            Path(f"/proc/{pid}/stat").exists()
            and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        ):
            return True  # ended, and waiting for an init that collects it
        time.sleep(0.02)
    return False
