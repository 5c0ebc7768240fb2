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
from cantata.embedded.stack_member import (
    FINISH,
    announce_ready,
    announce_serving,
    generation,
    has_virtual_time,
    inherited_socket,
    is_in_stack,
    is_stack_gone,
    report,
)
from cantata.embedded.stack_plan import FLOWER_PORT, GATEWAY_PORT, flower_command, gateway_command, worker_command
from cantata.embedded.stack_record import StackProcess

__all__ = [
    "FINISH",
    "FLOWER_PORT",
    "GATEWAY_PORT",
    "Home",
    "Stack",
    "StackProcess",
    "StackStatus",
    "announce_ready",
    "announce_serving",
    "attach",
    "down",
    "flower_command",
    "gateway_command",
    "generation",
    "has_virtual_time",
    "inherited_socket",
    "is_in_stack",
    "is_stack_gone",
    "report",
    "stack_url",
    "status",
    "worker_command",
]
