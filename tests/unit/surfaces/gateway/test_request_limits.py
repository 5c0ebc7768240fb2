"""Request rate of a tenant, and bounds of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from cantata.surfaces.gateway import request_limits
from cantata.surfaces.http.rejections import RequestRejected


class FixedRate:
    """Answers with a time to wait, or never."""

    def __init__(self, answer_s: float | None) -> None:
        self._answer_s = answer_s

    async def wait_s(self, tenant: str) -> float:
        if self._answer_s is None:
            await asyncio.Event().wait()
        return self._answer_s or 0.0


def check(rate: Any) -> None:
    asyncio.run(asyncio.wait_for(request_limits.check_rate(rate, "acme"), 20))


def test_a_request_above_the_rate_is_rejected() -> None:
    check(FixedRate(0.0))
    with pytest.raises(RequestRejected, match="too many requests"):
        check(FixedRate(0.5))


def test_nothing_is_rejected_while_redis_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "TIMEOUT_S", 0.01)

    check(FixedRate(None))


class Reader:
    """An application that reads the whole body, and then waits until it is let go."""

    def __init__(self) -> None:
        self.has_read, self.may_end = asyncio.Semaphore(0), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.has_read.release()
        await self.may_end.wait()


def parts(*bodies: bytes, is_whole: bool = True) -> Receive:
    """A client that sends these parts of a body, and if that is not whole nothing more."""
    left = [*bodies]

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not is_whole}

    return receive


async def send(_: Message) -> None: ...


def scope(tenant: str) -> Scope:
    return {"type": "http", "headers": [], "state": {"tenant": tenant}}


def test_a_body_that_stops_coming_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "BODY_S", 0.01)

    with pytest.raises(RequestRejected, match="no part of the body came") as refused:
        asyncio.run(request_limits.BodyLimit(Reader(), max_bytes=100)(scope("acme"), parts(b"{", is_whole=False), send))

    assert refused.value.status == 408


def test_the_bodies_of_a_tenants_open_requests_are_bounded_together_and_those_of_others_are_not() -> None:
    async def main() -> None:
        app = Reader()
        limit = request_limits.BodyLimit(app, max_bytes=100)
        held = [
            asyncio.create_task(limit(scope("acme"), parts(bytes(60), bytes(40)), send))
            for _ in range(request_limits.MAX_BODIES)
        ]
        for _ in held:
            await app.has_read.acquire()

        with pytest.raises(RequestRejected, match="are too large together") as refused:
            await limit(scope("acme"), parts(b"1"), send)
        other = asyncio.create_task(limit(scope("globex"), parts(bytes(100)), send))
        app.may_end.set()
        await asyncio.gather(*held, other)

        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
        await limit(scope("acme"), parts(bytes(100)), send)  # they are forgotten when their requests have ended

    asyncio.run(main())
