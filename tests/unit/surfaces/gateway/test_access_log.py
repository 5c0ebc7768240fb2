"""Lines of the access log for requests that do not end as usual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantata.surfaces.gateway.access_log import AccessLog
from cantata.surfaces.gateway.grants import Grant


async def never() -> Message:
    raise AssertionError("nothing is read")


async def ignore(message: Message) -> None:
    pass


def logged(
    capsys: pytest.CaptureFixture[str], app: ASGIApp, *, path: bytes = b"/runs/r1/events", received: Sequence[Message] = (), **scope: Any
) -> list[dict[str, Any]]:  # fmt: skip
    left = [*received]

    async def receive() -> Message:
        return left.pop(0)

    given = {"type": "http", "method": "GET", "raw_path": path, "client": ("10.0.0.1", 5), **scope}
    asyncio.run(AccessLog(app)(given, receive if received else never, ignore))
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_request_without_a_response_has_no_status(capsys: pytest.CaptureFixture[str]) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        """End without a response: the client went away."""

    (line,) = logged(capsys, silent)

    assert (line["status"], line["run"], line["token"], line["tenant"]) == (None, "r1", None, None)


@pytest.mark.parametrize("path", [b"/runs/counts", b"/runs/bulk", b"/runs/bulk/preview"])
def test_a_path_below_runs_that_names_none_has_no_run(capsys: pytest.CaptureFixture[str], path: bytes) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        """End without a response."""

    (line,) = logged(
        capsys, silent, path=path, state={"grant": Grant(tenant="", name="sre"), "tenant_of_request": "acme"}
    )

    assert "run" not in line
    assert (line["token"], line["tenant"]) == ("sre", "acme"), "the tenant that an operator has chosen"


def test_a_request_that_raises_is_logged_and_the_error_passes(capsys: pytest.CaptureFixture[str]) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        logged(capsys, failing)

    assert json.loads(capsys.readouterr().err)["status"] == 500


@pytest.mark.parametrize(
    ("path", "address"),
    [
        (b"/x\nrequest", "10.0.0.1"),
        (b"/x\x1b[2K\r", "10.0.0.1"),
        (b"/\xff\xfe", "10.0.0.1"),
        (b"/x" + b"y" * 5000, "10.0.0.1"),
        (b"/x", '1\n{"event": "request"}'),
    ],
)
def test_what_a_client_sends_is_one_printable_line(
    capsys: pytest.CaptureFixture[str], path: bytes, address: str
) -> None:
    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"12345"})

    (line,) = logged(capsys, answering, path=path, client=(address, 1))

    assert (line["path"] + line["address"]).isprintable()
    assert len(line["path"]) <= 500
    assert line["bytes"] == 5


def test_a_websocket_that_the_client_leaves_has_its_close_code(capsys: pytest.CaptureFixture[str]) -> None:
    async def chatting(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await receive()

    received: list[Message] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1001}]
    opened, closed = logged(capsys, chatting, path=b"/ws/s", received=received, type="websocket")

    assert (opened["event"], opened["status"]) == ("websocket_opened", 101)
    assert (closed["event"], closed["code"], closed["bytes"]) == ("websocket_closed", 1001, 5)
