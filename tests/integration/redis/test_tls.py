"""Each fault of a certificate is told in one sentence. That all goes through TLS where there is none, test_acl.py shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.errors import UnavailableError
from cantata.ledger.redis.connection import check, connect
from tests.integration.redis.fleets import submit
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


def test_a_certificate_for_another_name_is_told_in_one_sentence(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    with tls_before(server.port, authority.issue("elsewhere.example")) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={authority.file}"
        status = submit(tmp_path, "status", REDIS_URL=url)
        turn = submit(tmp_path, "turn", "hello", REDIS_URL=url)
        worker = submit(tmp_path, "worker", "tools", REDIS_URL=url)

    for told in (status, turn, worker):
        assert told.returncode == UNAVAILABLE, told.stderr
        (line,) = told.stderr.strip().splitlines()
        assert f"the certificate of Redis at rediss://localhost:{port}/0" in line
        assert "is not for this name (Hostname mismatch, certificate is not valid for 'localhost')" in line


@pytest.mark.parametrize(
    ("certificate", "days", "query", "said"),
    [
        ("localhost", 1, "", "is signed by no trusted authority (unable to get local issuer certificate)"),
        ("localhost", -1, "ssl_ca_certs={ca}", "has expired; renew it"),
        ("127.0.0.2", 1, "ssl_ca_certs={ca}", "is not for this name"),
    ],
)
def test_each_fault_of_a_certificate_has_its_sentence(
    server: Server, authority: Authority, certificate: str, days: int, query: str, said: str
) -> None:
    with tls_before(server.port, authority.issue(certificate, days=days)) as port:
        assert said in fault_of(f"rediss://localhost:{port}/0?{query.format(ca=authority.file)}")


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
