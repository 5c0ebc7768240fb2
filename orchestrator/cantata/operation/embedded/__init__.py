"""The embedded stack: Valkey and workers as processes on this machine, for one command or kept running by `submit up`.

    Stack.start(...) ──stdin──▶ supervisor ──▶ valkey-server, coordinator, agents, tools, flower, gateway
                                    │
                                    └── .cantata/stack.json: the processes, and where the server listens

One process, the supervisor, is the parent of all others. It restarts processes that exit, and stops all of them when it is asked to or when
the command that started the stack has exited. All other modules here only communicate with it. Only the standard library is imported, so
this package loads in milliseconds.
"""

from __future__ import annotations

from cantata.operation.embedded.home import Home
from cantata.operation.embedded.ports import is_free
from cantata.operation.embedded.stack import Stack, StackStatus, attach, down, stack_url, status
from cantata.operation.embedded.stack_plan import DEFAULT_PORTS
from cantata.operation.embedded.stack_record import StackProcess
from cantata.operation.embedded.valkey import find_server

__all__ = [
    "DEFAULT_PORTS", "Home", "Stack", "StackProcess", "StackStatus", "attach", "down", "find_server", "is_free", "stack_url", "status",
]  # fmt: skip
