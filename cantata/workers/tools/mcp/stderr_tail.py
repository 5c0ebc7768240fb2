"""Keeps the end of what a command writes to its standard error: mostly the reason why it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

KEPT = 2000  # bytes
PATIENCE_S = 0.5  # a command that has ended may have left others that still hold its standard error


class StderrTail(asyncio.Protocol):
    """The end of what a command writes."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_whole = asyncio.Event()

    @property
    def text(self) -> str:
        """What it wrote last."""
        return self._kept.decode(errors="replace")

    async def end(self) -> None:
        """Wait for the rest of what a command wrote that has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._is_whole.wait()

    def data_received(self, data: bytes) -> None:
        """Take in more."""
        self._kept = (self._kept + data)[-KEPT:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that there will be no more."""
        self._is_whole.set()


@asynccontextmanager
async def captured_stderr(words: StderrTail) -> AsyncIterator[TextIO]:
    """A file, for a command to write to, whose end is kept."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: words, os.fdopen(read, "rb", 0))
        try:
            yield file
        finally:
            file.close()  # else there would be no end to be read
            await words.end()
            transport.close()
