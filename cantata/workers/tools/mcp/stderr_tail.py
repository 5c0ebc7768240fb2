"""The end of a command's standard error, which mostly has the reason why it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

MAX_BYTES = 2000
EOF_TIMEOUT_S = 0.5  # a command that has ended may have left others that keep its standard error open


class StderrTail(asyncio.Protocol):
    """Reads a pipe, and keeps the last bytes."""

    def __init__(self) -> None:
        self._tail = b""
        self._is_at_end = asyncio.Event()

    @property
    def text(self) -> str:
        """The last bytes that were written, as text."""
        return self._tail.decode(errors="replace")

    async def read_to_end(self) -> None:
        """Wait, for a short time, until all output of a command that has ended was read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EOF_TIMEOUT_S):
                await self._is_at_end.wait()

    def data_received(self, data: bytes) -> None:
        """Append data, and keep the last bytes."""
        self._tail = (self._tail + data)[-MAX_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the output."""
        self._is_at_end.set()


@asynccontextmanager
async def captured_stderr(tail: StderrTail) -> AsyncIterator[TextIO]:
    """Yield a file for a command's standard error; `tail` keeps the end of what is written to it."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: tail, os.fdopen(read, "rb", 0))
        try:
            yield file
        finally:
            file.close()  # else the end would never be reached
            await tail.read_to_end()
            transport.close()
