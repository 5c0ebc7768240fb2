"""Real MCP servers, called on an event loop: what comes of their answers, and of their deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import McpServer
from cantata.values import JsonValue
from cantata_workers.tools import mcp
from cantata_workers.tools.mcp.server_session import Connection
from cantata_workers.tools.mcp.tool_results import ConnectionLost
from tests.integration.fleet.conftest import Journal
from tests.integration.mcp.conftest import SCRIPT, HttpServer, by_command, is_alive, is_known
from tests.waiting import until

Result = TypeVar("Result")

SECRET = "hunter2-hunter2"


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Do it on an event loop, and close what it opened."""

    async def bounded() -> Result:
        try:
            async with asyncio.timeout(40):
                return await work
        finally:
            await mcp.close()

    return asyncio.run(bounded())


async def call(server: McpServer, tool: str, timeout_s: float | None = None, **arguments: JsonValue) -> Any:
    return await mcp.call("desk", server, tool, arguments, timeout_s=timeout_s)


async def failure(server: McpServer, tool: str, timeout_s: float | None = None, **arguments: JsonValue) -> StepError:
    with pytest.raises(StepError) as raised:
        await call(server, tool, timeout_s, **arguments)
    return raised.value


async def soon(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    for _ in range(3500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


@pytest.fixture(params=["command", "address"])
def server(request: pytest.FixtureRequest, journal: Journal) -> McpServer:
    if request.param == "command":
        return by_command(journal)
    web: HttpServer = request.getfixturevalue("web")
    return McpServer(url=web.url)


# What is said


def test_tools_are_listed_with_their_schemas(server: McpServer) -> None:
    tools = {tool.name: tool for tool in run(mcp.list_tools("desk", server))}

    assert tools["add"].description == "Adds two numbers."
    assert tools["add"].parameters["required"] == ["a"]
    assert {"echo", "slow", "fails", "dies"} <= tools.keys()


def test_answers_become_json(server: McpServer) -> None:
    async def scenario() -> list[Any]:
        calls = [
            call(server, "add", a=1, b=2),
            call(server, "page", title="T"),
            call(server, "echo", text="hi"),
            call(server, "nothing"),
        ]
        return [*await asyncio.gather(*calls), *await call(server, "several")]

    picture = {"type": "image", "mimeType": "image/png", "bytes": 5}
    assert run(scenario()) == [{"result": 3}, {"title": "T", "lines": ["a", "b"]}, "hi", None, "one", "two", picture]


def test_a_server_s_schema_neither_holds_up_the_process_nor_has_anything_retrieved() -> None:
    async def scenario(listening: socket.socket) -> tuple[list[str], JsonValue, float]:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema"
        server = McpServer(command=[sys.executable, str(SCRIPT.with_name("hostile_server.py")), address])
        longest, before = 0.0, time.monotonic()
        calls = asyncio.gather(*(failure(server, tool) for tool in ("slow_pattern", "address", "wrong")))
        while not calls.done():
            await asyncio.sleep(0.01)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
        assert {error.code for error in calls.result()} == {"bad_output"}
        return [str(error) for error in calls.result()], await call(server, "right"), longest

    with socket.create_server(("127.0.0.1", 0)) as listening:
        (slow, address, wrong), right, longest = run(scenario(listening))
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()

    assert "does not fit the tool's output schema: the pattern" in slow
    assert "takes too long: the search has 0.25 s" in slow
    assert "is outside of the schema, and nothing is retrieved" in address
    assert "text: 'x' is not of type 'integer'" in wrong
    assert right == {"text": "x"}
    assert longest < 5, "the event loop went on"


def test_a_large_answer_comes_whole(server: McpServer) -> None:
    assert len(run(call(server, "large", kilobytes=3000))) == 3_000_000


def test_a_failure_has_the_server_s_message(server: McpServer) -> None:
    error = run(failure(server, "add", a="x"))

    assert (error.code, error.retryable) == ("tool_error", True)
    assert "Input should be a valid integer" in str(error)


def test_an_unknown_tool_is_reported_with_the_nearest_known_one(server: McpServer) -> None:
    error = run(failure(server, "ehco"))

    assert (error.code, error.retryable) == ("unknown_tool", False)
    assert str(error) == "MCP server 'desk' has no tool 'ehco'; did you mean 'echo'?"


@pytest.mark.parametrize("way", ["learn", "learn_silently"])
def test_a_tool_that_a_server_learns_is_known(server: McpServer, way: str) -> None:
    async def scenario() -> tuple[Any, list[str]]:
        before = [tool.name for tool in await mcp.list_tools("desk", server)]
        assert "novelty" not in before
        await call(server, way, name="novelty")
        return await call(server, "novelty"), [tool.name for tool in await mcp.list_tools("desk", server)]

    answer, names = run(scenario())

    assert answer == "novelty"
    assert "novelty" in names


def test_a_notified_change_makes_the_list_be_requested_again(server: McpServer) -> None:
    async def scenario() -> bool:
        await call(server, "learn", name="novelty")
        for _ in range(2000):  # over HTTP the word may come after the answer
            if "novelty" in [tool.name for tool in await mcp.list_tools("desk", server)]:
                return True
            await asyncio.sleep(0.01)
        return False

    assert run(scenario())


# Who is asked


def test_concurrent_calls_share_one_connection(server: McpServer, journal: Journal) -> None:
    async def scenario() -> list[Any]:
        return await asyncio.gather(*(call(server, "slow", seconds=0.2) for _ in range(20)))

    assert run(scenario()) == [{"result": "done"}] * 20
    assert len(journal.of("slow started")) == 20
    assert len(journal.of("session")) == 1


def test_a_cancelled_caller_leaves_the_others_alone_and_notifies_the_server(
    server: McpServer, journal: Journal
) -> None:
    async def scenario() -> Any:
        kept = asyncio.create_task(call(server, "slow", seconds=1.0))
        dropped = asyncio.create_task(call(server, "slow", seconds=600))
        await soon(lambda: len(journal.of("slow started")) == 2)
        dropped.cancel()
        await soon(lambda: journal.of("slow cancelled"))
        return await kept

    assert run(scenario()) == {"result": "done"}
    assert len(journal.of("slow cancelled")) == 1


def test_a_command_gets_the_variables_it_names_and_no_others(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_TOKEN", SECRET)
    monkeypatch.setenv("OTHER_TOKEN", SECRET)

    given = run(call(by_command(journal, env=["DESK_TOKEN"]), "environment"))

    assert given["DESK_TOKEN"] == SECRET
    assert "PATH" in given
    assert "OTHER_TOKEN" not in given


def test_a_command_runs_in_the_folder_of_the_configuration(journal: Journal, tmp_path: Path) -> None:
    answer = run(mcp.call("desk", by_command(journal), "folder", {}, folder=str(tmp_path)))

    assert answer == {"result": str(tmp_path)}


def test_what_a_command_writes_beside_messages_harms_nothing(journal: Journal) -> None:
    assert run(call(by_command(journal, "--noisy"), "add", a=1)) == {"result": 2}


# Secrets


def test_secrets_of_the_environment_are_redacted(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_WORD", SECRET)

    error = run(failure(by_command(journal, env=["DESK_WORD"]), "fails", variable="DESK_WORD"))

    assert "no luck with ***" in str(error)
    assert SECRET not in str(error)


def test_secret_headers_are_sent_and_redacted(web: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_HEADER", f"Bearer {SECRET}")

    error = run(
        failure(
            McpServer(url=web.url, headers={"Authorization": "DESK_HEADER"}),
            "fails_with_header",
            header="authorization",
        )
    )

    assert "no luck with *** at all" in str(error)


def test_secrets_in_the_standard_error_of_a_command_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_WORD", SECRET)
    command = [sys.executable, "-c", "import os, sys; sys.exit('cannot log in with ' + os.environ['DESK_WORD'])"]

    error = run(failure(McpServer(command=command, env=["DESK_WORD"]), "any"))

    assert (
        str(error)
        == "MCP server 'desk' cannot be started: it ended; its standard error ends with: cannot log in with ***"
    )


def test_a_variable_that_is_not_set_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DESK_WORD", raising=False)

    error = run(failure(McpServer(command=["any"], env=["DESK_WORD"]), "any"))

    assert (error.code, error.retryable) == ("mcp_unavailable", False)
    assert "DESK_WORD is not set; set it in the environment of the workers" in str(error)


# What goes wrong


def test_a_missing_command_is_reported() -> None:
    error = run(failure(McpServer(command=["no-such-mcp-server"]), "any"))

    assert (error.code, error.retryable) == ("mcp_unavailable", False)
    assert "cannot be started" in str(error)
    assert "no-such-mcp-server" in str(error)


def test_an_unreachable_address_is_reported() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"

        error = run(failure(McpServer(url=url), "any"))

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert "cannot be reached" in str(error)


def test_an_address_without_a_server_is_reported(web: HttpServer) -> None:
    error = run(failure(McpServer(url=web.url.replace("/mcp", "/other")), "any"))

    assert f"there is none at {web.url.replace('/mcp', '/other')} (404)" in str(error)


@pytest.mark.slow("a command hangs until its time is over")
def test_a_command_that_hangs_is_given_up_and_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ >'{file}'; exec sleep 600"]

    error = run(failure(McpServer(command=command, connect_timeout_s=3.0), "any"))

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert str(error) == "MCP server 'desk' was not ready within 3 s"
    until(lambda: not is_alive(int(file.read_text())), "its end")


def test_an_address_that_hangs_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()

        error = run(
            failure(McpServer(url=f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", connect_timeout_s=0.5), "any")
        )

    assert str(error) == "MCP server 'desk' was not ready within 0.5 s"


def test_callers_that_wait_for_a_hanging_server_fail_together() -> None:
    server = McpServer(command=["sleep", "600"], connect_timeout_s=0.5)

    async def scenario() -> list[StepError]:
        return await asyncio.gather(*(failure(server, "any") for _ in range(5)))

    assert {str(error) for error in run(scenario())} == {"MCP server 'desk' was not ready within 0.5 s"}


def test_a_call_that_takes_too_long_is_withdrawn(server: McpServer, journal: Journal) -> None:
    async def scenario() -> StepError:
        await mcp.list_tools("desk", server)
        since = time.monotonic()
        error = await failure(server, "slow", 2.0, seconds=600)
        assert time.monotonic() - since < 30
        await soon(lambda: journal.of("slow cancelled"))
        assert await call(server, "add", a=1) == {"result": 2}
        return error

    error = run(scenario())

    assert (error.code, error.retryable) == ("timeout", True)
    assert str(error) == "tool 'slow' of MCP server 'desk' did not answer within 2 s"
    assert len(journal.of("session")) == 1


def test_a_command_that_dies_in_a_call_is_started_again_for_the_next(journal: Journal) -> None:
    server = by_command(journal)

    async def scenario() -> StepError:
        error = await failure(server, "dies")
        assert await call(server, "add", a=1) == {"result": 2}
        return error

    error = run(scenario())

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert "ended before tool 'dies' answered" in str(error)
    assert len(journal.of("session")) == 2


def test_all_open_calls_fail_when_a_command_dies(journal: Journal) -> None:
    server = by_command(journal)

    async def scenario() -> list[StepError]:
        calls = [asyncio.create_task(failure(server, "slow", seconds=600)) for _ in range(5)]
        await soon(lambda: len(journal.of("slow started")) == 5)
        await failure(server, "dies")
        return await asyncio.gather(*calls)

    assert {error.code for error in run(scenario())} == {"mcp_unavailable"}


def test_a_command_found_dead_is_started_again_unnoticed(journal: Journal) -> None:
    server = by_command(journal)

    async def scenario() -> tuple[int, int]:
        first = (await call(server, "pid"))["result"]
        os.kill(first, signal.SIGKILL)
        await soon(lambda: not is_known(first))
        for _ in range(100):  # the end of its output is there to be read
            await asyncio.sleep(0)
        return first, (await call(server, "pid"))["result"]

    first, second = run(scenario())

    assert first != second


def test_a_listing_is_asked_for_again_of_a_server_that_was_started_again(web: HttpServer, journal: Journal) -> None:
    server = McpServer(url=web.url)

    async def scenario() -> StepError:
        assert await call(server, "add", a=1) == {"result": 2}
        web.kill()
        web.start()
        return await failure(server, "unheard_of")  # it is looked for in a new list

    assert run(scenario()).code == "unknown_tool"
    assert len(journal.of("session")) == 2


def test_a_listing_that_breaks_off_on_the_way_is_asked_for_again(
    web: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, broken = Connection._request, list[str]()

    async def breaks_once(connection: Connection, send: Any, subject: str, timeout_s: float) -> Any:
        if subject == "the list of tools" and not broken:
            broken.append(subject)
            await connection.close()
            raise ConnectionLost("the connection is closed", was_sent=True)
        return await request(connection, send, subject, timeout_s)

    monkeypatch.setattr(Connection, "_request", breaks_once)

    assert run(call(McpServer(url=web.url), "add", a=1)) == {"result": 2}
    assert broken


def test_an_http_server_that_is_started_again_is_connected_anew_unnoticed(web: HttpServer, journal: Journal) -> None:
    server = McpServer(url=web.url)

    async def scenario() -> None:
        assert await call(server, "add", a=1) == {"result": 2}
        web.kill()
        web.start()
        assert await call(server, "add", a=1) == {"result": 2}

    run(scenario())

    assert len(journal.of("session")) == 2


def test_an_http_server_that_dies_in_a_call_is_noticed_long_before_the_time_out(
    web: HttpServer, journal: Journal
) -> None:
    server = McpServer(url=web.url, timeout_s=600)

    async def scenario() -> StepError:
        called = asyncio.create_task(failure(server, "slow", seconds=600))
        await soon(lambda: journal.of("slow started"))
        web.kill()
        return await called

    error = run(scenario())

    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert "was lost" in str(error)


# The end


def test_a_closed_command_ends_even_if_it_would_stay(journal: Journal) -> None:
    pid = run(call(by_command(journal, "--stubborn"), "pid"))["result"]

    assert journal.of("stays")
    assert not is_alive(pid)


def test_a_connection_that_nobody_uses_is_closed(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    from cantata_workers.tools.mcp import server_session  # noqa: PLC0415  # the SDK is imported when it is needed, here too

    monkeypatch.setattr(server_session, "IDLE_S", 0.2)
    monkeypatch.setattr(server_session, "PING_INTERVAL_S", 0.05)
    server = by_command(journal)

    async def scenario() -> None:
        first = (await call(server, "pid"))["result"]
        await soon(lambda: not is_alive(first))
        assert (await call(server, "pid"))["result"] != first

    run(scenario())


WORKER = """
import asyncio, sys
from cantata.flows.definitions import McpServer
from cantata_workers.tools import mcp

async def work():
    server = McpServer(command=[sys.executable, *sys.argv[1:]])
    print((await mcp.call("desk", server, "pid", {}))["result"], flush=True)
    await mcp.call("desk", server, "slow", {"seconds": 600})

asyncio.run(work())
"""


@pytest.mark.thorough("a worker starts from nothing; that servers end with the stack is held by mcp/test_fleet.py")
@pytest.mark.slow("a worker starts from nothing")
def test_a_command_ends_when_its_worker_is_killed(journal: Journal) -> None:
    command = [sys.executable, "-c", WORKER, str(SCRIPT), "--journal", str(journal.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        until(lambda: journal.of("slow started"), "the call")

        worker.kill()

    until(lambda: not is_alive(pid), "the end of the server")


@pytest.mark.slow("a program starts from nothing")
def test_the_sdk_is_imported_when_it_is_needed_and_no_sooner() -> None:
    code = "import sys, cantata_workers.steps.handlers, cantata.surfaces.cli.main; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
