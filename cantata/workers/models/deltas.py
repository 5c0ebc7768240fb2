"""Tells a run's events of a model's reply while it comes, a few pieces at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog

from cantata.errors import CantataError
from cantata.state.redis.connection import RedisFailure
from cantata.workers.runtime.step_context import StepContext

log = structlog.get_logger(__name__)

EVERY_S = 0.04  # pieces that come closer together are told as one: a reader sees no difference, Redis does


class Deltas:
    """The pieces of one reply, told in order. At the end of the block all are told, or, of a reply that failed, none will be any more."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._text = ""
        self._some, self._over = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Another piece."""
        self._text += text
        self._some.set()
        if self._task is None:
            self._task = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            await self._some.wait()
            text, self._text = self._text, ""
            self._some.clear()
            if text:
                try:
                    await asyncio.to_thread(self._context.process.ledger.stream, self._context.begun, text)
                except (CantataError, RedisFailure) as error:  # the reply itself will be recorded
                    log.warning("delta_publish_failed", run=self._context.begun.run_id, step=self._context.begun.step_id, error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), EVERY_S)
            if self._over.is_set() and not self._text:
                return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._task is None:
            return
        if kind is not None and not issubclass(kind, Exception):  # cancelled
            self._task.cancel()
            return
        if kind is not None:
            self._text = ""
        self._over.set()
        self._some.set()
        await self._task
