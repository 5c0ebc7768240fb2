"""Tells when a request leaves for a model's provider: its connection is made, and its first bytes are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

OnRequestStart = Callable[[], Awaitable[None]]

_on_leaving: ContextVar[OnRequestStart | None] = ContextVar("on_request_start", default=None)


@contextmanager
def on_request_start(call: OnRequestStart) -> Iterator[None]:
    """Have `call` awaited when a request leaves that is made within the block."""
    token = _on_leaving.set(call)
    try:
        yield
    finally:
        _on_leaving.reset(token)


def watch(aiohttp: Any) -> None:
    """Watch all sessions of aiohttp that are made from now on. LiteLLM makes its own, and takes no tracing for them."""
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_left)
    init = aiohttp.ClientSession.__init__

    @wraps(init)
    def watched(self: Any, *args: Any, trace_configs: Any = None, **more: Any) -> None:
        init(self, *args, trace_configs=[*(trace_configs or ()), trace], **more)

    aiohttp.ClientSession.__init__ = watched


async def _left(_session: object, _context: object, _params: object) -> None:
    if call := _on_leaving.get():
        await call()
