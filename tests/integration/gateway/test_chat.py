"""Chats over WebSockets: turns with tokens and tools, lost connections, lost workers, a lost Redis."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import Deployment, Gateway, Json, start
from tests.waiting import until

SLOWLY = {"reply": "a b c d e f", "chunk_delay_s": 0.1}


def reply_text(frames: list[Json]) -> str:
    """What the tokens say, without what is void."""
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "token":
            texts[frame["step"]] = texts.get(frame["step"], "") + frame["text"]
        if frame["type"] == "void":
            texts[frame["step"]] = ""
    return "".join(texts.values())


def name() -> str:
    """A session of one test alone."""
    return uuid.uuid4().hex


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_turn_is_told_token_by_token(gateway: Gateway, models: ScriptedModels) -> None:
    models.script([{**SLOWLY, "chunk_delay_s": 1.0}])

    async def main() -> list[Json]:
        async with gateway.chat(name()) as chat:
            await chat.say("hello", id="1")
            return await chat.until("result")

    frames = asyncio.run(main())

    assert [frame["type"] for frame in frames[:2]] == ["accepted", "agent"]
    assert (frames[0]["id"], frames[1]["agent"]) == ("1", "echo")
    assert len([frame for frame in frames if frame["type"] == "token"]) > 1
    assert reply_text(frames) == frames[-1]["output"] == "a b c d e f"
    assert (frames[-1]["status"], frames[-1]["error"], frames[-1]["agents"]) == ("succeeded", None, ["echo"])
    assert frames[-1]["usage"]["model_calls"] == 1
    seqs = [frame["seq"] for frame in frames[1:]]
    assert seqs == sorted(set(seqs))


def test_the_choice_of_an_agent_and_its_tools_are_told(gateway: Gateway, models: ScriptedModels) -> None:
    calls = [{"name": "add", "arguments": {"a": 2, "b": 3}}]
    models.script([{"after_tools": 0, "tool_calls": calls}, {"after_tools": 1, "reply": "five"}])

    async def main() -> list[Json]:
        async with gateway.chat(name()) as chat:
            await chat.say("sum of 2 and 3", team="deployment")
            return await chat.until("result")

    frames = asyncio.run(main())

    told = {frame["type"]: frame for frame in frames}
    assert (told["chosen"]["agent"], told["chosen"]["by"]) == ("clerk", "rules")
    tools = [(f["tool"], f["state"], f.get("input"), f.get("output")) for f in frames if f["type"] == "tool"]
    assert tools == [("add", "started", {"a": 2, "b": 3}, None), ("add", "done", None, 5)]
    assert frames[-1]["output"] == "five"


@pytest.mark.parametrize("text", ["@clerk: sum", "@history @clerk: sum"])
def test_a_mention_goes_past_routing(gateway: Gateway, text: str) -> None:
    async def main() -> Json:
        async with gateway.chat(name()) as chat:
            return await chat.ask(text)

    assert asyncio.run(main())["agents"] == ["clerk"]


def test_turns_of_a_session_run_in_order_and_are_kept(gateway: Gateway, models: ScriptedModels) -> None:
    models.script([{"match": "^one$", "reply": "first", "delay_s": 0.5}, {"match": "^two$", "reply": "second"}])
    session = name()

    async def main() -> list[Json]:
        async with gateway.chat(session) as chat:
            await chat.say("one")
            await chat.say("two")
            return [*await chat.until("result"), *await chat.until("result")]

    frames = asyncio.run(main())

    assert [frame["output"] for frame in frames if frame["type"] == "result"] == ["first", "second"]
    with gateway.http() as http:
        entries = http.get(f"/sessions/{session}").json()["entries"]
    assert [entry["content"] for entry in entries] == ["one", "first", "two", "second"]


def test_a_client_that_comes_back_goes_on_where_it_was(gateway: Gateway, models: ScriptedModels) -> None:
    models.script([SLOWLY])
    session = name()

    async def main() -> list[Json]:
        async with gateway.chat(session) as chat:
            await chat.say("hello")
            frames = await chat.until("token")
        while frames[-1]["type"] != "result":
            async with gateway.chat(session) as chat:
                await chat.send({"resume": {frames[-1]["run_id"]: frames[-1]["seq"]}})
                frames.append(await chat.frame())
        return frames

    frames = asyncio.run(main())

    assert reply_text(frames) == "a b c d e f"
    seqs = [frame["seq"] for frame in frames[1:]]
    assert seqs == sorted(set(seqs)), "nothing twice"


def test_the_whole_turn_can_be_had_again(gateway: Gateway) -> None:
    session = name()

    async def main() -> tuple[list[Json], list[Json]]:
        async with gateway.chat(session) as chat:
            await chat.say("hello")
            first = await chat.until("result")
            await chat.send({"resume": {first[0]["run_id"]: 0}})
            return first[1:], await chat.until("result")

    first, again = asyncio.run(main())

    assert first == again


def test_a_text_that_is_sent_again_with_its_id_is_one_turn(gateway: Gateway, models: ScriptedModels) -> None:
    session = name()
    before = len(models.journal())

    async def main() -> list[Json]:
        frames = []
        for _ in range(2):
            async with gateway.chat(session) as chat:
                await chat.say("hello", id="the-first")
                frames += await chat.until("result")
        async with gateway.chat(session) as chat:
            await chat.say("something else", id="the-first")
            return [*frames, await chat.frame()]

    frames = asyncio.run(main())

    assert len({frame["run_id"] for frame in frames[:-1]}) == 1
    assert len(models.journal()) == before + 1
    assert frames[-1]["error"]["code"] == "key_used"


def test_a_client_that_vanishes_leaves_the_run_going_and_finds_its_answer(
    gateway: Gateway, models: ScriptedModels
) -> None:
    models.script([SLOWLY])
    session = name()

    async def main() -> str:
        async with gateway.chat(session) as chat:
            await chat.say("hello")
            accepted = await chat.frame()
            await chat.until("token")
            transport = chat.socket.transport
            transport.abort()  # no close frame, no goodbye
        return str(accepted["run_id"])

    run_id = asyncio.run(main())

    with gateway.http() as http:
        assert http.get(f"/runs/{run_id}?wait=30").json()["result"]["output"] == "a b c d e f"
        assert [entry["content"] for entry in http.get(f"/sessions/{session}").json()["entries"]] == [
            "hello",
            "a b c d e f",
        ]

    async def again() -> Json:
        async with gateway.chat(session) as chat:
            await chat.send({"resume": {run_id: 0}})
            return (await chat.until("result"))[-1]

    assert asyncio.run(again())["output"] == "a b c d e f"


@pytest.mark.slow("a reply breaks off and is asked for again")
def test_tokens_of_a_reply_that_broke_off_are_void(gateway: Gateway, models: ScriptedModels) -> None:
    models.script([{**SLOWLY, "chunk_delay_s": 1.0, "truncate": 900, "times": 1}, {"reply": "whole again"}])

    async def main() -> list[Json]:
        async with gateway.chat(name()) as chat:
            await chat.say("hello")
            return await chat.until("result")

    frames = asyncio.run(main())

    assert [frame["reason"] for frame in frames if frame["type"] == "void"] == ["retry"]
    assert {frame["attempt"] for frame in frames if frame["type"] == "token"} == {1, 2}
    assert reply_text(frames) == frames[-1]["output"] == "whole again"


def test_a_failed_turn_is_told_as_an_error_never_as_an_answer(gateway: Gateway, models: ScriptedModels) -> None:
    models.script([{"status": 400, "reply": "no"}])

    async def main() -> Json:
        async with gateway.chat(name()) as chat:
            return await chat.ask("hello")

    result = asyncio.run(main())

    assert (result["status"], result["output"]) == ("failed", None)
    assert result["error"]["message"]


WRONG = [
    ("", "JSON object"),
    ("hello", "JSON object"),
    ("[1]", "JSON object"),
    ('{"text": "x"', "JSON"),
    ('{"txt": "x"}', "did you mean 'text'?"),
    ('{"text": ""}', "empty"),
    ('{"text": "x", "agent": "nobody"}', "nobody"),
    ('{"text": "x", "session": "other"}', "unknown key"),
    ('{"text": "@nobody: x"}', "nobody"),
    ('{"resume": {}}', "resume"),
    ('{"resume": {"x": -1}}', "at least 0"),
    ('{"resume": {"unknown": 0}}', "is not known"),
    ('{"text": "\\ud800"}', ""),
    ("{text: hello}", "message: line 1: this is not JSON"),
]


def test_a_wrong_message_is_told_and_the_chat_goes_on(gateway: Gateway) -> None:
    async def main() -> list[Json]:
        async with gateway.chat(name()) as chat:
            errors = []
            for message, _ in WRONG:
                await chat.socket.send(message)
                errors.append(await chat.frame())
            await chat.socket.send(b"\x00")
            errors.append(await chat.frame())
            assert (await chat.ask("still here"))["output"] == "echo: still here"
            return errors

    errors = asyncio.run(main())

    assert {error["type"] for error in errors} == {"error"}
    for error, (_, told) in zip(errors, [*WRONG, ("", "bytes")], strict=True):
        assert told in error["error"]["message"], error


@pytest.mark.parametrize("wrong", ['"txt": "hello"', '"text": ""', '"text": "x", "agent": "nobody"'])
def test_a_message_that_is_refused_is_told_by_its_id(gateway: Gateway, wrong: str) -> None:
    async def main() -> Json:
        async with gateway.chat(name()) as chat:
            await chat.socket.send(f'{{"id": "mine", {wrong}}}')
            return await chat.frame()

    frame = asyncio.run(main())

    assert (frame["type"], frame["id"]) == ("error", "mine")


def test_a_run_of_another_session_is_not_resumed(gateway: Gateway) -> None:
    async def main() -> Json:
        async with gateway.chat(name()) as chat, gateway.chat(name()) as other:
            run_id = (await chat.ask("mine"))["run_id"]
            await other.send({"resume": {run_id: 0}})
            return await other.frame()

    assert asyncio.run(main())["error"]["code"] == "unknown_run"


def test_a_session_may_have_any_name_that_can_be_printed(gateway: Gateway) -> None:
    async def main() -> Json:
        async with gateway.chat("a%2Fb%20%C3%A7%25") as chat:
            return await chat.ask("hello")

    asyncio.run(main())

    with gateway.http() as http:
        assert "a/b ç%" in [info["session"] for info in http.get("/sessions").json()["sessions"]]


@pytest.mark.thorough("it waits for twenty seconds; that a run goes on without its client is held by the tests above")
@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_client_that_does_not_read_is_let_go_of_and_its_run_goes_on(
    deployment: Deployment, models: ScriptedModels
) -> None:
    models.script(
        [{"match": "much 0", "reply": "x" * 3_000_000, "delay_s": 8.0}, {"reply": "x" * 3_000_000}]
    )  # until all three are seen
    with (
        deployment.gateway() as gateway,
        socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) as raw,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(HANDSHAKE)
        assert b"101" in raw.recv(200)
        for number in range(3):  # more than the buffers of the system hold
            raw.sendall(masked({"text": f"much {number}"}))
        with gateway.http() as http:
            runs = until(
                lambda: len(found := http.get("/sessions/deaf").json().get("waiting", [])) == 3 and found, "the runs"
            )
            assert [http.get(f"/runs/{run_id}?wait=40").json()["status"] for run_id in runs] == ["succeeded"] * 3
        until(lambda: not open_sockets(gateway), "the end of the connection")


HANDSHAKE = (
    b"GET /ws/deaf HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked(message: Json) -> bytes:
    """A text frame of a client; the mask is zero."""
    text = json.dumps(message).encode()
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


def open_sockets(gateway: Gateway) -> int:
    """Connections of clients that a gateway holds."""
    return open_sockets_at(int(gateway.url.rpartition(":")[2]))


def open_sockets_at(number: int) -> int:
    """Connections that are open at a port of this machine."""
    port = f"{number:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port}") and row[3] == "01" for row in rows)


# --- what a gateway stands on is lost -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels) -> Iterator[Deployment]:
    """A stack that these tests may hurt."""
    folder = tmp_path_factory.mktemp("victim")
    with start(folder, models) as stack:
        yield Deployment(folder, stack, models)


def kill(deployment: Deployment, process: str) -> None:
    """Kill a process of the stack, which is started again."""
    os.kill(
        next(each.pid for each in deployment.stack.processes() if each.name == process and each.alive), signal.SIGKILL
    )


@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_a_worker_that_is_killed_in_the_middle_makes_its_tokens_void(
    victim: Deployment, models: ScriptedModels
) -> None:
    models.script([{**SLOWLY, "times": 1, "chunk_delay_s": 1.0}, {"reply": "from another"}])

    async def main(gateway: Gateway) -> list[Json]:
        async with gateway.chat(name()) as chat:
            await chat.say("hello")
            frames = await chat.until("token")
            kill(victim, "agents")
            return [*frames, *await chat.until("result")]

    with victim.gateway() as gateway:
        frames = asyncio.run(main(gateway))

    assert [frame["reason"] for frame in frames if frame["type"] == "void"] == ["lost"]
    assert reply_text(frames) == frames[-1]["output"] == "from another"


@pytest.mark.slow("a Redis is ended and started again")
def test_a_redis_that_is_restarted_does_not_end_the_chat(victim: Deployment, models: ScriptedModels) -> None:
    models.script([{"match": "^slow$", "reply": "a b c", "chunk_delay_s": 2.0}])

    async def main(gateway: Gateway) -> list[Json]:
        async with gateway.chat(name()) as chat:
            assert (await chat.ask("before"))["output"] == "echo: before"
            await chat.say("slow")
            frames = await chat.until("token")
            kill(victim, "valkey")
            frames += await chat.until("result")
            assert (await chat.ask("after"))["output"] == "echo: after"
            return frames

    with victim.gateway() as gateway:
        frames = asyncio.run(main(gateway))

    assert frames[-1]["output"] == "a b c"


@pytest.mark.slow("gateways end and start")
def test_a_gateway_that_ends_tells_its_clients_to_come_back(deployment: Deployment, models: ScriptedModels) -> None:
    models.script([SLOWLY])
    session = name()

    async def main() -> Json:
        with deployment.gateway() as first:
            async with first.chat(session) as chat:
                await chat.say("hello")
                frames = await chat.until("token")
                first.process.terminate()
                await chat.socket.wait_closed()
                assert chat.socket.close_code == 1012
        with deployment.gateway() as second:
            async with second.chat(session) as chat:
                await chat.send({"resume": {frames[-1]["run_id"]: frames[-1]["seq"]}})
                frames += await chat.until("result")
        assert reply_text(frames) == "a b c d e f"
        return frames[-1]

    assert asyncio.run(main())["status"] == "succeeded"
