"""Calls of the embedded model while its server starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from cantata.errors import ModelError
from cantata_workers.models.local import model_server, provider
from cantata_workers.models.local.provider import Provider

REPLY: dict[str, Any] = {"object": "chat.completion", "created": 1, "choices": [], "usage": {}}
HELLO = [{"role": "user", "content": "hello"}]


class Server:
    """A server that is away for the first posts."""

    def __init__(self, away: int) -> None:
        self.away, self.asked = away, 0

    async def post(self, _address: object, _path: str, _body: Mapping[str, object]) -> dict[str, Any]:
        self.asked += 1
        if self.asked <= self.away:
            raise httpx.ConnectError("All connection attempts failed")
        return REPLY


def ask(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(model_server, "find_server", lambda _: object())
    monkeypatch.setattr(provider, "_post", server.post)
    monkeypatch.setattr(provider, "RESTART_DELAY_S", 0.0)
    return asyncio.run(Provider(home).acompletion("smollm2", HELLO, model_response={}, optional_params={}))


def test_a_server_that_is_away_more_than_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(away=3)

    ask(server, tmp_path, monkeypatch)

    assert server.asked == 4


def test_one_that_stays_away_fails_the_call_which_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "RESTART_S", 0.0)
    server = Server(away=100)

    with pytest.raises(ModelError, match="went away") as raised:
        ask(server, tmp_path, monkeypatch)

    assert (server.asked, raised.value.retryable) == (2, True)
