"""A function that workers of Cantata call, beside the user's application: it sends a task of its own."""

from __future__ import annotations

from shop.tasks import add  # type: ignore[import-not-found]  # found beside this file


def send_add(a: int) -> list[str]:
    """Send a task, and tell with which application and where to."""
    sent = add.delay(a, mark="sent by a tool")
    return [str(sent.app.main), str(sent.get(timeout=20, disable_sync_subtasks=False))]
