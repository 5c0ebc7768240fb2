"""A hook for the start of a request to a provider: its connection is open, and its headers are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

OnRequestStart = Callable[[], Awaitable[None]]

_hook: ContextVar[OnRequestStart | None] = ContextVar("on_request_start", default=None)


@contextmanager
def on_request_start(call: OnRequestStart) -> Iterator[None]:
    """Await `call` when a request made within the block starts."""
    token = _hook.set(call)
    try:
        yield
    finally:
        _hook.reset(token)


def patch(aiohttp: Any) -> None:
    """Add the hook to all aiohttp sessions that are created from now on: LiteLLM creates its own, without an option for tracing."""
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_headers_sent)
    init = aiohttp.ClientSession.__init__

    @wraps(init)
    def patched(self: Any, *args: Any, trace_configs: Any = None, **more: Any) -> None:
        init(self, *args, trace_configs=[*(trace_configs or ()), trace], **more)

    aiohttp.ClientSession.__init__ = patched


async def _headers_sent(_session: object, _context: object, _params: object) -> None:
    if call := _hook.get():
        await call()
