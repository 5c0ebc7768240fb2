"""Publishes a model's reply to the event log while it is streamed, several pieces at a time."""

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

MIN_INTERVAL_S = 0.04  # pieces that come closer together are published as one: readers see no difference, Redis has less to do


class Deltas:
    """The pieces of one reply, published in order.

    When the block ends, all pieces are published; if the reply failed, no more will be.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._text = ""
        self._has_text, self._is_ended = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Add a piece to be published."""
        self._text += text
        self._has_text.set()
        if self._task is None:
            self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            await self._has_text.wait()
            text, self._text = self._text, ""
            self._has_text.clear()
            if text:
                try:
                    await asyncio.to_thread(self._context.process.ledger.steps.append_delta, self._context.begun, text)
                except (CantataError, RedisFailure) as error:  # the reply itself will be recorded
                    log.warning("delta_publish_failed", run=self._context.begun.run_id, step=self._context.begun.step_id, error=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_ended.wait(), MIN_INTERVAL_S)
            if self._is_ended.is_set() and not self._text:
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
        self._is_ended.set()
        self._has_text.set()
        await self._task
