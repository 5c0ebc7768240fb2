"""The embedded stack: Valkey and workers as processes on this machine, for one command or kept running by `submit up`.

    Stack.start(...) ──stdin──▶ supervisor ──▶ valkey-server, coordinator, agents, tools, flower, gateway
                                    │
                                    └── .cantata/stack.json: the processes, and where the server listens

One process, the supervisor, is the parent of all others. It restarts processes that exit, and stops all of them when it is asked to or when
the command that started the stack has exited. All other modules here only communicate with it. Only the standard library is imported, so
this package loads in milliseconds.
"""

from __future__ import annotations

from cantata.embedded.home import Home
from cantata.embedded.stack import Stack, StackStatus, attach, down, stack_url, status
from cantata.embedded.stack_record import StackProcess

__all__ = ["Home", "Stack", "StackProcess", "StackStatus", "attach", "down", "stack_url", "status"]
