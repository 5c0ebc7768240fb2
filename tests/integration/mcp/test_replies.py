"""Replies of MCP servers as the protocol has them, and as it does not: what a step gets of each, and when."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from cantata.errors import StepError
from cantata.flows.definitions import McpServer
from cantata_workers.tools import mcp
from cantata_workers.tools.mcp import server_session
from tests.integration.fleet.conftest import Journal
from tests.integration.mcp.conftest import PUPPET, by_command, puppet
from tests.integration.mcp.test_servers import run
from tests.waiting import until

AT_ONCE_S = 20.0  # time-outs are 600 s
OK = '{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "fine"}]}}'


@pytest.fixture(autouse=True)
def _own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `capture_logs` see the lines, though an earlier test of this process may have configured logs after the first of them."""
    monkeypatch.setattr(server_session, "log", structlog.get_logger("mcp"))


@pytest.fixture
def address(tmp_path: Path) -> Iterator[McpServer]:
    file = tmp_path / "port"
    with subprocess.Popen([sys.executable, str(PUPPET), "--http", str(file)]) as process:
        until(lambda: file.exists() and file.read_text(), "the port")
        yield McpServer(url=f"http://127.0.0.1:{file.read_text()}/mcp", timeout_s=600, connect_timeout_s=60)
        process.kill()


async def write(server: McpServer, *lines: str, **more: Any) -> Any:
    return await mcp.call("desk", server, "write", {"lines": list(lines), **more})


async def refused(server: McpServer, *lines: str, **more: Any) -> StepError:
    with pytest.raises(StepError) as raised:
        await write(server, *lines, **more)
    return raised.value


def result(**fields: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "NUMBER", "result": fields}).replace('"NUMBER"', "ID")


def replied(*lines: str) -> Any:
    return run(write(puppet(), *lines))


# What is in a reply


def test_a_failure_says_what_the_server_said_of_it() -> None:
    async def scenario() -> list[StepError]:
        server = puppet()
        texts = [{"type": "text", "text": "no luck"}]
        both: list[dict[str, Any]] = [
            {"content": texts, "structuredContent": {"code": 7}},
            {"structuredContent": {"code": 7}},
            {"content": None},
        ]
        return [await refused(server, result(isError=True, **fields)) for fields in both]

    errors = run(scenario())

    assert [str(error) for error in errors] == ["no luck", '{"code": 7}', "tool 'write' failed without a message"]
    assert {(error.code, error.retryable) for error in errors} == {("tool_error", True)}


def test_secrets_in_the_structured_content_of_a_failure_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_TOKEN", "hunter2-hunter2")

    error = run(
        refused(puppet(env=["DESK_TOKEN"]), result(isError=True, structuredContent={"token": "hunter2-hunter2"}))
    )

    assert str(error) == '{"token": "***"}'


def test_a_reply_arrives_whole_whatever_its_parts_are() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "hologram", "depth": 3},
    ]

    async def scenario() -> list[Any]:
        server = puppet()
        return [
            await write(server, result(**fields))
            for fields in ({"content": parts}, {}, {"content": None, "isError": None})
        ]

    assert run(scenario()) == [
        ["one", {"type": "audio", "mimeType": "audio/wav", "bytes": 3}, {"type": "hologram", "depth": 3}],
        None,
        None,
    ]


def test_one_tool_that_cannot_be_read_leaves_the_others_usable() -> None:
    tools = [
        {"name": "write", "inputSchema": {}},
        {"name": "bare"},
        {"name": "odd", "inputSchema": "none"},
        "text",
        {"inputSchema": {}},
    ]

    with capture_logs() as logs:
        listed = run(mcp.list_tools("desk", puppet("--list", json.dumps({"tools": tools}))))

    assert [tool.name for tool in listed] == ["write"]
    warned = [(each["server"], each["tool"]) for each in logs if each["event"] == "mcp_tool_unreadable"]
    assert warned == [("desk", "bare"), ("desk", "odd"), ("desk", "text"), ("desk", "None")]
    assert "inputSchema: Field required" in next(each["reason"] for each in logs if each.get("tool") == "bare")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("{}", "the list of tools of MCP server 'desk' has no 'tools'"),
        ('{"tools": null}', "the list of tools of MCP server 'desk' has no 'tools'"),
        ('{"tools": [], "nextCursor": "again"}', "the list of tools of MCP server 'desk' has more than 1000 pages"),
    ],
)
def test_a_list_of_tools_that_is_none_is_refused(listed: str, message: str) -> None:
    error = run(refused(puppet("--list", listed)))

    assert (error.code, str(error)) == ("bad_output", message)


# What is no reply


ID_LESS = [
    "oh no",
    "{not json}",
    '[{"a": 1}]',
    '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "what?"}}',
    '"text"',
]


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "te',
        '{"jsonrpc": "2.0", "id": ID, "result": null}',
        '{"jsonrpc": "2.0", "id": ID}',
        '{"id": ID, "result": {"content": []}}',
        '{"jsonrpc": "1.0", "id": "ID", "result": {}}',
        '{"result": {"content": [}, "jsonrpc": "2.0", "id": ID}',
        '{"jsonrpc": "2.0", "id": ID, "error": "no"}',
        'Loading... {"jsonrpc": "2.0", "id": ID, "result": {"content": []}}',
        *ID_LESS,
    ],
)
def test_a_line_that_is_no_message_fails_the_call_at_once_and_the_connection_goes_on(line: str) -> None:
    server = puppet()

    async def scenario() -> tuple[StepError, float]:
        assert await write(server, OK) == "fine"
        since = time.monotonic()
        error = await refused(server, line)
        took_s = time.monotonic() - since
        assert await write(server, OK) == "fine"
        return error, took_s

    error, took_s = run(scenario())

    assert (error.code, error.retryable) == ("bad_output", False)
    assert str(error).startswith("tool 'write' of MCP server 'desk' did not answer: it wrote ")
    assert f"it wrote {line.partition('ID')[0][:50]!r}"[:-1] in str(error)
    assert str(error).endswith("which is no message of the protocol")
    assert took_s < AT_ONCE_S


def test_a_damaged_answer_leaves_the_other_calls_of_its_connection_alone(tmp_path: Path) -> None:
    server, file = puppet(), tmp_path / "go"

    async def scenario() -> tuple[Any, StepError]:
        other = asyncio.create_task(write(server, OK, after=str(file)))
        error = await refused(server, '{"jsonrpc": "2.0", "id": ID, "result": []}')
        file.touch()
        return await other, error

    answer, error = run(scenario())

    assert answer == "fine"
    assert error.code == "bad_output"


def test_another_server_s_calls_notice_nothing(journal: Journal) -> None:
    other = by_command(journal)

    async def scenario() -> tuple[Any, list[StepError]]:
        slow = asyncio.create_task(mcp.call("other", other, "slow", {"seconds": 1.0}))
        errors = [await refused(puppet(), line) for line in ID_LESS[:2]]
        return await slow, errors

    answer, errors = run(scenario())

    assert answer == {"result": "done"}
    assert {error.code for error in errors} == {"bad_output"}
    assert len(journal.of("session")) == 1


@pytest.mark.parametrize(
    "noise", ["INFO calling the API", '{"level": "info", "msg": "calling"}', "", "\x1b[1mbold\x1b[0m", "[note] a"]
)
def test_a_server_that_logs_to_standard_output_before_it_answers_is_heard(noise: str) -> None:
    with capture_logs() as logs:
        assert run(write(puppet(), noise, noise, OK)) == "fine"

    assert len([each for each in logs if each["event"] == "mcp_unreadable"]) == (1 if noise else 0)


@pytest.mark.parametrize(
    "noise",
    [
        '{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": {}}}',
        '{"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": 7}',
        '{"jsonrpc": "2.0", "method": "notifications/unheard_of", "params": {"a": 1}}',
        '{"jsonrpc": "2.0", "id": 4711, "method": "unheard/of"}',
        '{"jsonrpc": "2.0", "id": 4711, "result": {}}',
        '{"jsonrpc": "2.0", "id": "other", "result": {}}',
        '{"jsonrpc": "2.0", "id": 4711, "result": "damaged"}',
    ],
)
def test_messages_of_wrong_shapes_beside_an_answer_harm_nothing(noise: str) -> None:
    assert replied(noise, OK) == "fine"


def test_a_line_without_end_is_given_up_and_the_server_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from cantata_workers.tools.mcp import transports  # noqa: PLC0415  # the SDK is imported when it is needed, here too

    monkeypatch.setattr(transports, "MAX_LINE_BYTES", 1_000_000)
    server = puppet()

    async def scenario() -> StepError:
        error = await refused(server, "x" * 1000, times=3000)
        assert await write(server, OK) == "fine"
        return error

    error = run(scenario())

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert "it wrote a line of more than 1 MB" in str(error)


def test_a_server_whose_first_answer_is_damaged_is_reported_at_once() -> None:
    error = run(refused(puppet("--initialize", '{"jsonrpc": "2.0", "id": 0, "result": oh}', connect_timeout_s=600)))

    assert error.code == "mcp_unavailable"
    assert (
        'MCP server \'desk\' cannot be used: it wrote \'{"jsonrpc": "2.0", "id": 0, "result": oh}\', which is no message'
        in str(error)
    )


def test_a_program_that_is_no_server_is_reported_with_what_it_wrote() -> None:
    error = run(refused(puppet("--initialize", "usage: desk [FILE]", connect_timeout_s=3)))

    assert (
        str(error)
        == "MCP server 'desk' was not ready within 3 s; it wrote 'usage: desk [FILE]', which is no message of the protocol"
    )


def test_a_greeting_before_the_first_answer_harms_nothing() -> None:
    assert run(write(puppet("--greeting", "Welcome!"), OK)) == "fine"


# Over HTTP

EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        (["<html>log in</html>"], "text/html", "its response cannot be read: Unexpected content type: text/html"),
        (
            ["<html>log in</html>"],
            "application/json",
            "it wrote '<html>log in</html>', which is no message of the protocol",
        ),
        ([], "application/json", None),
        ([""], "application/json", "it wrote '', which is no message of the protocol"),
        (['{"id": ID, "result": {}}'], "application/json", '"result": {}}\', which is no message of the protocol'),
        (["oh no"], EVENTS, "it wrote 'oh no', which is no message of the protocol"),
        (['{"jsonrpc": "2.0", "id": ID, "result": null}'], EVENTS, "which is no message of the protocol"),
    ],
)
def test_a_response_that_is_no_message_fails_its_call_at_once(
    address: McpServer, lines: list[str], kind: str, message: str | None
) -> None:
    async def scenario() -> tuple[Any, StepError]:
        assert await write(address, OK) == "fine"
        answered = await asyncio.gather(write(address, OK, kind=EVENTS), refused(address, *lines, kind=kind))
        assert await write(address, OK) == "fine"
        return answered

    if message is None:  # 202, as servers of an older protocol, which answer elsewhere
        address = address.model_copy(update={"timeout_s": 1.0})
        assert run(scenario())[1].code == "timeout"
        return
    answer, error = run(scenario())

    assert answer == "fine"
    assert error.code == "bad_output"
    assert message in str(error)


def test_a_response_without_an_answer_fails_its_call_at_once(address: McpServer) -> None:
    async def scenario() -> StepError:
        error = await refused(
            address, '{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}', kind=EVENTS
        )
        assert await write(address, OK) == "fine"
        return error

    error = run(scenario())

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert str(error) == (
        "the connection to MCP server 'desk' was lost: its response ended without an answer to tool 'write'"
    )
