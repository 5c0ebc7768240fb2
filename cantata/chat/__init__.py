"""A chat on a terminal: reads lines, asks a backend, shows its answers as they come.

    run, run_async ──▶ loop ──▶ commands
                            ──▶ telling ──▶ output

The backend says what is asked. The loop takes lines and has them answered; `telling` makes of a turn's events what a reader is told of it.
"""

from __future__ import annotations

from cantata.chat.conversation import ChatBackend, ClientBackend, unknown_agent_error
from cantata.chat.loop import run, run_async

__all__ = ["ChatBackend", "ClientBackend", "run", "run_async", "unknown_agent_error"]
