"""Readers that are idle, slow or gone, and those who guess tokens: what they cost a gateway, its other tenants, and themselves."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cantata.surfaces.gateway import serve
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import ANNA, SCOPES, TENANTS, Deployment, Gateway
from tests.integration.gateway.test_chat import open_sockets_at
from tests.waiting import at_best, until

OTTO = "token-of-another-otto-0123456789"  # not of the tenant whose batches other tests look at
ALL_TENANTS = {**TENANTS, OTTO: {"tenant": "connections", "name": "otto", "scopes": SCOPES}}
MAX_OPEN = 400
MEASURED = 60  # calls
MAX_RATIO = 2.0  # of the median of another tenant's calls, beside hundreds of idle readers; it was 12 when they polled in threads
MIN_MS = 5.0  # below it a ratio says nothing


@pytest.fixture(scope="module")
def bounded(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of two tenants, each of which may have so many streams."""
    with deployment.gateway(
        "--max-open", str(MAX_OPEN), "--rate", "10000", CANTATA_GATEWAY_TOKENS=json.dumps(ALL_TENANTS)
    ) as gateway:
        yield gateway


def raw(gateway: Gateway, path: str, token: str = ANNA) -> socket.socket:
    """A socket that has sent a request, and reads nothing by itself."""
    found = socket.create_connection((urlsplit(gateway.url).hostname, urlsplit(gateway.url).port), timeout=40)
    found.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return found


@contextmanager
def readers(gateway: Gateway, *paths: str, count: int) -> Iterator[list[socket.socket]]:
    """Idle readers of streams, each of which has begun."""
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            sockets.append(raw(gateway, paths[number % len(paths)]))
            if number % 50 == 49 or number == count - 1:
                for each in sockets[-50:]:
                    assert each.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 429")
        yield sockets
    finally:
        for each in sockets:
            each.close()


def streams_of(http: httpx.Client, models: ScriptedModels, name: str) -> tuple[str, str]:
    """Return the paths of the events of an open batch and of an open run."""
    models.script([{"reply": "late", "delay_s": 30}])
    http.post("/batches", json={"name": name, "agent": "echo"})
    run = http.post("/turns", json={"text": f"of {name}"}).json()["run_id"]
    return f"/batches/{name}/events", f"/runs/{run}/events"


def median_ms(http: httpx.Client) -> float:
    took = []
    for _ in range(MEASURED):
        began = time.perf_counter()
        assert http.get("/memory").status_code == 200
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


@pytest.mark.slow("hundreds of connections are opened, and calls are measured")
def test_hundreds_of_idle_readers_of_a_tenant_do_not_slow_the_calls_of_another(
    bounded: Gateway, models: ScriptedModels
) -> None:
    with bounded.http(ANNA) as anna, bounded.http(OTTO) as otto:
        paths = streams_of(anna, models, "idle")
        median_ms(otto)

        def ratio() -> float:
            alone = median_ms(otto)
            with readers(bounded, *paths, count=MAX_OPEN):
                return median_ms(otto) / max(alone, MIN_MS)

        found = at_best(ratio, MAX_RATIO)

    assert found <= MAX_RATIO


def test_a_tenant_with_too_many_streams_is_refused_more_until_some_end_and_others_are_not(
    bounded: Gateway, models: ScriptedModels
) -> None:
    with bounded.http(ANNA) as anna, bounded.http(OTTO) as otto:
        batch, run = streams_of(anna, models, "full")
        other, _ = streams_of(otto, models, "free")
        until(lambda: anna.get(f"{run[:-7]}?wait=0.01").status_code == 200, "the end of the readers before")
        with readers(bounded, batch, run, count=MAX_OPEN) as sockets:
            until(lambda: anna.get(batch).status_code == 429, "the last reader")
            for refused in (
                anna.get(batch),
                anna.get(run),
                anna.get(f"{run[:-7]}?wait=5"),
                anna.post("/turns?wait=5", json={"text": "x"}),
            ):
                assert (refused.status_code, refused.json()["error"]["code"], refused.headers["Retry-After"]) == (
                    429,
                    "too_many_open",
                    "6",
                )
            chat = bounded.url.replace("http", "ws") + "/ws/x"
            with pytest.raises(InvalidStatus) as closed, connect(chat, additional_headers=bearer(ANNA)):
                pass
            assert closed.value.response.status_code == 429
            assert anna.get("/memory").status_code == 200, "its other calls are served"
            with otto.stream("GET", other) as stream:
                assert next(stream.iter_lines()) == "event: batch"

            for each in sockets[:10]:  # they are abandoned: the other end learns it from a reset
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each.close()
            until(lambda: anna.get(f"{run[:-7]}?wait=0.01").status_code == 200, "room after some have gone")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_change_reaches_each_of_many_readers(bounded: Gateway, models: ScriptedModels) -> None:
    with bounded.http(ANNA) as anna:
        batch, _ = streams_of(anna, models, "told")
        with readers(bounded, batch, count=100) as sockets:
            anna.post("/batches/told/cancel")
            for each in sockets:
                said = b""
                while b'"state":"cancelled"' not in said:
                    said += each.recv(65536)
                while b"\r\n0\r\n\r\n" not in said:  # the end of the response
                    said += each.recv(65536)


def test_a_flood_of_unknown_tokens_is_throttled_and_known_ones_of_the_same_address_get_in(bounded: Gateway) -> None:
    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=bounded.url, timeout=40) as http:
            calls = (http.get("/memory", headers=bearer(f"token-that-nobody-has-{number}")) for number in range(100))
            wrong = await asyncio.gather(*calls)
            assert (await http.get("/memory", headers=bearer(OTTO))).status_code == 200
            return wrong

    wrong = asyncio.run(flood())

    statuses = [each.status_code for each in wrong]
    assert {*statuses} == {401, 429}
    assert statuses.count(401) < 50
    refused = wrong[statuses.index(429)]
    assert refused.json()["error"]["code"] == "too_many_failures"
    assert int(refused.headers["Retry-After"]) >= 1
    with bounded.http(ANNA) as anna, bounded.http(OTTO) as otto:
        assert anna.get("/memory").status_code == otto.get("/memory").status_code == 200
        assert otto.get("/memory", headers={"X-Forwarded-For": "10.0.0.1"}).status_code == 200


# --- connections, with short limits -------------------------------------------------------------------------------------------


class Streams:
    """As much of the service's streams as the server looks at."""

    def end(self) -> None: ...


@contextmanager
def served(app: FastAPI) -> Iterator[tuple[str, int]]:
    """An application in a server of the gateway, in a thread."""
    app.state.service = SimpleNamespace(streams=Streams())
    listening = serve.bind("127.0.0.1", 0)
    ready = threading.Event()
    server = serve.GatewayServer(app, ready=ready.set, max_bytes=1000)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    try:
        assert ready.wait(40)
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join(40)


def rest(connection: socket.socket) -> bytes:
    """What comes until the other end closes; it may reset the connection."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def endless() -> FastAPI:
    app = FastAPI()

    async def zeros() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)
            await asyncio.sleep(0)

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        return StreamingResponse(zeros())

    @app.get("/short")
    async def short() -> str:
        return "yes"

    return app


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: x", b"GET /short HTTP/1.1\r\nHost: x\r\n\r\nGET /short"]
)
def test_a_client_that_sends_no_whole_request_is_let_go_of(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REQUEST_S", 0.3)
    with served(endless()) as address, socket.create_connection(address, timeout=40) as silent:
        silent.sendall(sent)

        found = rest(silent)

    assert (b"200 OK" in found) == (b"/short HTTP" in sent)


def test_a_client_that_does_not_read_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STALLED_S", 0.3)
    with served(endless()) as address, socket.create_connection(address, timeout=40) as deaf:
        deaf.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: not open_sockets_at(address[1]), "the end of the stream")
        assert rest(deaf), "what the kernel had"


def test_beyond_its_connections_a_server_ends_the_oldest_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "max_connections", lambda: 3)
    with served(endless()) as address:
        silent = [socket.create_connection(address, timeout=40) for _ in range(3)]
        streams = []
        for _ in range(3):
            streams.append(socket.create_connection(address, timeout=40))
            streams[-1].sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            assert streams[-1].recv(12) == b"HTTP/1.1 200"
        assert [rest(each) for each in silent] == [b"", b"", b""]

        with socket.create_connection(address, timeout=40) as more:
            refused = rest(more)

        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "busy"
        for each in (*silent, *streams):
            each.close()
