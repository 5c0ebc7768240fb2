"""Readiness: whether runs would be executed now, asked at most once a second for any number of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cantata.client.client import Client
from cantata.client.failures import RedisFailure
from cantata.errors import CantataError

FRESH_S = 1.0  # the answer of a probe is used again for so long
READY_S = 2.0  # until a probe reports that Redis hangs: less than the 3 s that `submit status` waits

Found = list[str] | Exception


class Readiness:
    """Probes Redis for the public path `/ready`."""

    def __init__(self, client: Client, call: Callable[[Callable[[], list[str]]], Awaitable[list[str]]]) -> None:
        """`call` runs a blocking function in a thread."""
        self._fleet = client.fleet
        self._call = call
        self._probing: asyncio.Task[Found] | None = None
        self._probed_at = 0.0

    async def faults(self) -> list[str]:
        """Return the reasons why runs would not be executed now; none if they would. Answers in time, though Redis may hang."""
        now = asyncio.get_running_loop().time()
        if self._probing is None or (self._probing.done() and now - self._probed_at > FRESH_S):
            self._probing, self._probed_at = asyncio.create_task(self._probe()), now
        found = await asyncio.shield(self._probing)
        if isinstance(found, Exception):
            raise found
        return found

    async def _probe(self) -> Found:
        try:
            return await asyncio.wait_for(self._call(self._find_faults), READY_S)
        except TimeoutError:
            return [f"Redis gave no answer within {READY_S:g} s"]
        except (CantataError, RedisFailure, OSError) as error:  # raised for each request
            return error

    def _find_faults(self) -> list[str]:
        return self._fleet.faults()
