"""Redis behind TLS: everything goes through it, and a certificate that does not fit is told in one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import UnavailableError
from orchestrator.state.connection import check, connect
from orchestrator.state.streams import Streams, connect_async
from orchestrator.testing import ScriptedModels
from tests.integration.redis.fleets import Fleet, serving, use_everything
from tests.integration.redis.servers import Server, running
from tests.integration.redis.tls import Authority, tls_before

UNAVAILABLE = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis without TLS."""
    server = Server(tmp_path_factory.mktemp("server"))
    with running(server):
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def url(server: Server, authority: Authority) -> Iterator[str]:
    """Redis behind TLS that asks for clients' certificates."""
    certificate, key = authority.issue("client")
    with tls_before(server.port, authority.issue("localhost"), clients_of=authority) as port:
        yield f"rediss://localhost:{port}/0?ssl_ca_certs={authority.file}&ssl_certfile={certificate}&ssl_keyfile={key}"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, url: str, models: ScriptedModels) -> Iterator[Fleet]:
    """A fleet whose ledger and broker are behind TLS."""
    with serving(tmp_path_factory.mktemp("fleet"), url) as fleet:
        yield fleet


def test_all_that_touches_redis_goes_through_tls(workers: Fleet, url: str) -> None:
    use_everything(workers, "tls")

    assert workers.submit("status").returncode == 0
    assert asyncio.run(events_of(url, workers.client.runs(most=1)[0].run_id))


async def events_of(url: str, run_id: str) -> list[str]:
    """The events of a run, as the gateway reads them."""
    redis = connect_async(url)
    streams = Streams(redis)
    reading = asyncio.create_task(streams.run())
    with streams.follow(run_id) as follower:
        events = await follower.events(10.0)
    streams.end()
    await reading
    await redis.aclose()
    return [event.type for event in events]


def test_a_certificate_for_another_name_is_told_in_one_sentence(server: Server, authority: Authority, workers: Fleet) -> None:
    with tls_before(server.port, authority.issue("elsewhere.example")) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={authority.file}"
        status = workers.submit("status", REDIS_URL=url)
        turn = workers.submit("turn", "hello", REDIS_URL=url)
        worker = workers.submit("worker", "tools", REDIS_URL=url)

    for told in (status, turn, worker):
        assert told.returncode == UNAVAILABLE, told.stderr
        (line,) = told.stderr.strip().splitlines()
        assert f"the certificate of Redis at rediss://localhost:{port}/0" in line
        assert "is not for this name (Hostname mismatch, certificate is not valid for 'localhost')" in line


@pytest.mark.parametrize(
    ("certificate", "days", "query", "said"),
    [
        ("localhost", 1, "", "is signed by nobody trusted here (unable to get local issuer certificate)"),
        ("localhost", -1, "ssl_ca_certs={ca}", "has expired; renew it"),
        ("127.0.0.2", 1, "ssl_ca_certs={ca}", "is not for this name"),
    ],
)
def test_each_fault_of_a_certificate_has_its_sentence(
    server: Server, authority: Authority, certificate: str, days: int, query: str, said: str
) -> None:
    with tls_before(server.port, authority.issue(certificate, days=days)) as port:
        assert said in fault_of(f"rediss://localhost:{port}/0?{query.format(ca=authority.file)}")


def test_a_client_without_a_certificate_is_told_to_name_one(url: str) -> None:
    assert "with ?ssl_certfile= and &ssl_keyfile=" in fault_of(url.partition("&")[0])


def test_a_redis_without_tls_is_told_from_one_with_it(server: Server, tmp_path: Path) -> None:
    assert "reached" in fault_of(f"rediss://localhost:{server.port}/0?socket_timeout=0.2&socket_connect_timeout=0.2")
    assert "ssl_ca_certs" in fault_of(f"rediss://localhost:{server.port}/0?ssl_ca_certs={tmp_path}/none.pem")


def fault_of(url: str) -> str:
    """What is said of a Redis that cannot be used."""
    with connect(url) as redis, pytest.raises(UnavailableError) as caught:
        check(redis, url=url)
    said = str(caught.value)
    assert "\n" not in said
    return said
