"""A chat on a terminal: reads lines, submits them to a backend, shows the replies as they come.

    run, run_async ──▶ loop ──▶ slash_commands
                            ──▶ turn_view ──▶ output

`ChatBackend` submits turns and has the conversation. `turn_view` folds the events of a turn into items to show.
"""

from __future__ import annotations

from cantata.surfaces.chat.backend import ChatBackend, unknown_agent_error
from cantata.surfaces.chat.loop import run, run_async

__all__ = ["ChatBackend", "run", "run_async", "unknown_agent_error"]
