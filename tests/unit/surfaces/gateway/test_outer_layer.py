"""The URL prefix of the gateway."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from cantata.errors import ConfigError
from cantata.surfaces.gateway.outer_layer import OuterLayer, prefix_of


@pytest.mark.parametrize(
    ("text", "prefix"), [("", ""), ("/", ""), ("cantata", "/cantata"), ("/a/b-1/", "/a/b-1"), ("/runs2", "/runs2")]
)
def test_a_prefix_is_read_with_or_without_its_slashes(text: str, prefix: str) -> None:
    assert prefix_of(text, own_names={"runs"}) == prefix


@pytest.mark.parametrize(
    "text", ["..", "a/../b", "a//b", "a b", "a%2Fb", 'a"b', "https://x.example", "runs", "/runs/x"]
)
def test_an_invalid_prefix_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no URL prefix|begins like a path of the gateway"):
        prefix_of(text, own_names={"runs"})


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("/a/runs/1", "/runs/1"),
        ("/runs/1", "/runs/1"),
        ("/a", "/"),
        ("/a/", "/"),
        ("/ab/runs", "/ab/runs"),
        ("/a/runs/x%2Fy", "/runs/x%2Fy"),
    ],
)
def test_a_prefix_is_removed_where_it_is_present(asked: str, seen: str) -> None:
    paths: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])

    async def never() -> Message:
        raise AssertionError("nothing is read")

    async def nothing(message: Message) -> None:
        raise AssertionError("nothing is sent")

    asyncio.run(OuterLayer(app, prefix="/a")({"type": "http", "raw_path": asked.encode()}, never, nothing))

    assert paths == [seen]
