"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantata.client.async_client import AsyncChainRun, AsyncClient, AsyncTurnRun
    from cantata.client.client import Client
    from cantata.client.heartbeats import heartbeat
    from cantata.client.installation import Installation, install
    from cantata.client.memory_bank import MemoryBank
    from cantata.client.runs import ChainRun, Run, TurnRun
    from cantata.config.user_code.tool_decorator import tool, tools_of
    from cantata.errors import CantataError, ConfigError, RunError, StepError, UnavailableError, UnknownRunError
    from cantata.flows.events import RunEvent
    from cantata.flows.turns.function_names import get_function_name_from_tool_call
    from cantata.flows.wire import ChainEvent, ChainNode, ChainRequest, ChainResponse, RunResult, TurnRequest
    from cantata.flows.workflows.api import Workflow
    from cantata.flows.workflows.decorator import workflow
    from cantata.values import ToolContext
    from cantata_frontends.agentchain import AgentChain
    from cantata_frontends.chainbuilder import ChainBuilder, DynamicChainBuilder
    from cantata_frontends.promptchain import AgenticStepProcessor, PromptChain, create_memory_chain, memory_function

__version__ = "0.1.0"

_HOMES = {
    # submitting and reading runs
    "Client": "cantata.client.client",
    "Run": "cantata.client.runs",
    "TurnRun": "cantata.client.runs",
    "ChainRun": "cantata.client.runs",
    "AsyncClient": "cantata.client.async_client",
    "AsyncTurnRun": "cantata.client.async_client",
    "AsyncChainRun": "cantata.client.async_client",
    # in an existing Celery application
    "install": "cantata.client.installation",
    "Installation": "cantata.client.installation",
    "heartbeat": "cantata.client.heartbeats",
    # chains of prompts and functions, written in Python
    "PromptChain": "cantata_frontends.promptchain",
    "AgenticStepProcessor": "cantata_frontends.promptchain",
    "get_function_name_from_tool_call": "cantata.flows.turns.function_names",
    "AgentChain": "cantata_frontends.agentchain",
    "ChainBuilder": "cantata_frontends.chainbuilder",
    "DynamicChainBuilder": "cantata_frontends.chainbuilder",
    # workflows in Python
    "workflow": "cantata.flows.workflows.decorator",
    "Workflow": "cantata.flows.workflows.api",
    # memory
    "MemoryBank": "cantata.client.memory_bank",
    "create_memory_chain": "cantata_frontends.promptchain",
    "memory_function": "cantata_frontends.promptchain",
    # requests, results and events
    "ChainRequest": "cantata.flows.wire",
    "ChainNode": "cantata.flows.wire",
    "ChainResponse": "cantata.flows.wire",
    "ChainEvent": "cantata.flows.wire",
    "TurnRequest": "cantata.flows.wire",
    "RunResult": "cantata.flows.wire",
    "RunEvent": "cantata.flows.events",
    # tools
    "tool": "cantata.config.user_code.tool_decorator",
    "tools_of": "cantata.config.user_code.tool_decorator",
    "ToolContext": "cantata.values",
    # errors
    "CantataError": "cantata.errors",
    "ConfigError": "cantata.errors",
    "RunError": "cantata.errors",
    "StepError": "cantata.errors",
    "UnavailableError": "cantata.errors",
    "UnknownRunError": "cantata.errors",
}

__all__ = [
    "AgentChain",
    "AgenticStepProcessor",
    "AsyncChainRun",
    "AsyncClient",
    "AsyncTurnRun",
    "CantataError",
    "ChainBuilder",
    "ChainEvent",
    "ChainNode",
    "ChainRequest",
    "ChainResponse",
    "ChainRun",
    "Client",
    "ConfigError",
    "DynamicChainBuilder",
    "Installation",
    "MemoryBank",
    "PromptChain",
    "Run",
    "RunError",
    "RunEvent",
    "RunResult",
    "StepError",
    "ToolContext",
    "TurnRequest",
    "TurnRun",
    "UnavailableError",
    "UnknownRunError",
    "Workflow",
    "create_memory_chain",
    "get_function_name_from_tool_call",
    "heartbeat",
    "install",
    "memory_function",
    "tool",
    "tools_of",
    "workflow",
]


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is first used: `submit --help` must not load Celery."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names too, so that shells complete them."""
    return sorted({*globals(), *__all__})
