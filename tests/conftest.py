"""What holds for every test."""

from __future__ import annotations

import gc
import ipaddress
import itertools
import os
import re
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import warm
from tests.examples import FEWER

# What a developer's shell may have set must not change a result; tests set what they need. CANTATA_REDIS_SERVER names another server.
FOREIGN = re.compile(
    r"REDIS_URL|CANTATA_(?!REDIS_SERVER$).*|(OPENAI|ANTHROPIC|LITELLM|OTEL|FLOWER|CELERY)_.*|(HTTP|HTTPS|ALL|NO)_PROXY|PYTHONPATH|PYTEST_(ADDOPTS|PLUGINS)",
    re.I,
)
for foreign in [name for name in os.environ if FOREIGN.fullmatch(name)]:
    del os.environ[foreign]

# Clients trust one authority, which has signed nothing: they read those of all the world each time they are made, which takes 20 ms.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))

# No deadline for an example: two busy cores would make a test fail that is right.
settings.register_profile("thorough", settings(), deadline=None)
settings.register_profile("plain", settings(), deadline=None, max_examples=100 // FEWER)
settings.load_profile("thorough" if FEWER == 1 else "plain")


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of this run have one parent, from which they are forked."""
    if not hasattr(config, "workerinput"):
        warm.serve(config.add_cleanup)
    warm.use()
    # pytest rewrites assertions in every module of a package that has a plugin: two seconds more in each runner.
    for package in ("cantata", "cantata_frontends", "cantata_workers"):
        config.pluginmanager.rewrite_hook._must_rewrite.discard(package)  # type: ignore[attr-defined]  # no option says so


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import without looking for garbage, and never look through what is imported again: it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_folders = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test. pytest's own fixture reads the names of all folders of the run for each one: 5 ms and more."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_folders)}"
    folder.mkdir()
    return folder


class NetworkReached(RuntimeError):
    """A test wanted to leave this machine. Not an OSError: what is built to live with a lost network would hide it."""


REMEDY = "use cantata.testing, or an address of this machine"


@pytest.fixture(scope="session", autouse=True)
def _hosts_refused() -> Iterator[list[str]]:
    """Sockets of the test process reach loopback and Unix sockets only, and only names of this machine are looked up."""
    refused: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name), _addressed, refused))
        patch.setattr(socket, "getaddrinfo", _guarded(socket.getaddrinfo, _looked_up, refused))
        yield refused


@pytest.fixture(autouse=True)
def hosts_refused(_hosts_refused: list[str]) -> Iterator[list[str]]:
    """The hosts that the test wanted to reach. It fails if there are any, whoever caught the error."""
    _hosts_refused.clear()
    yield _hosts_refused
    assert not _hosts_refused, f"this test wanted to reach {', '.join(map(repr, _hosts_refused))}; {REMEDY}"


def _guarded(function: Callable[..., Any], host_of: Callable[..., object], refused: list[str]) -> Callable[..., Any]:
    def guarded(*words: Any, **more: Any) -> Any:
        host = host_of(*words, **more)
        if not _is_here(host):
            refused.append(str(host))
            raise NetworkReached(f"a test must not reach {host!r}; {REMEDY}")
        return function(*words, **more)

    return guarded


def _addressed(sock: socket.socket, *words: Any) -> object:
    """The host in the last argument; None of a Unix socket."""
    return words[-1][0] if sock.family in (socket.AF_INET, socket.AF_INET6) else None


def _looked_up(host: object, *_: object, **_more: object) -> object:
    return host


def _is_here(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
