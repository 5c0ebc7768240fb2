"""Functions that workers of Cantata call, beside the user's application: they send a task of their own."""

from __future__ import annotations

import asyncio

from shop.tasks import add  # type: ignore[import-not-found]  # found beside this file


def send_add(a: int) -> list[str]:
    """Send a task, and tell with which application and where to."""
    sent = add.delay(a, mark="sent by a tool")
    return [str(sent.app.main), str(sent.get(timeout=20, disable_sync_subtasks=False))]


async def send_add_async(a: int) -> list[str]:
    """Do the same from the thread of coroutines, which has no current application of its own."""
    sent = add.delay(a, mark="sent by a tool")
    return [str(sent.app.main), str(await asyncio.to_thread(sent.get, timeout=20, disable_sync_subtasks=False))]
