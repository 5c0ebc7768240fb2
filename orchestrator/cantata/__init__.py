"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantata.client.async_client import AsyncChainRun, AsyncClient, AsyncTurnRun
    from cantata.client.client import Client
    from cantata.client.installation import Installation, install
    from cantata.client.memory_bank import MemoryBank
    from cantata.client.runs import ChainRun, Run, TurnRun
    from cantata.config.user_code.tool_decorator import tool, tools_of
    from cantata.errors import CantataError, ConfigError, RunError, StepError, UnavailableError, UnknownRunError
    from cantata.frontends.agentchain import AgentChain
    from cantata.frontends.chainbuilder import ChainBuilder, DynamicChainBuilder
    from cantata.frontends.promptchain import AgenticStepProcessor, PromptChain, create_memory_chain, memory_function
    from cantata.models.events import RunEvent
    from cantata.models.values import ToolContext
    from cantata.models.wire import ChainEvent, ChainNode, ChainRequest, ChainResponse, RunResult, TurnRequest
    from cantata.planning.turns.tool_calls import get_function_name_from_tool_call
    from cantata.workflows.api import Workflow
    from cantata.workflows.decorator import workflow

__version__ = "0.1.0"

_HOMES = {
    # submitting and reading runs
    "Client": "client.client", "Run": "client.runs", "TurnRun": "client.runs", "ChainRun": "client.runs",
    "AsyncClient": "client.async_client", "AsyncTurnRun": "client.async_client",
    "AsyncChainRun": "client.async_client",
    # in an existing Celery application
    "install": "client.installation", "Installation": "client.installation",
    # chains of prompts and functions, written in Python
    "PromptChain": "frontends.promptchain", "AgenticStepProcessor": "frontends.promptchain",
    "get_function_name_from_tool_call": "planning.turns.tool_calls",
    "AgentChain": "frontends.agentchain", "ChainBuilder": "frontends.chainbuilder",
    "DynamicChainBuilder": "frontends.chainbuilder",
    # workflows in Python
    "workflow": "workflows.decorator", "Workflow": "workflows.api",
    # memory
    "MemoryBank": "client.memory_bank", "create_memory_chain": "frontends.promptchain", "memory_function": "frontends.promptchain",
    # requests, results and events
    "ChainRequest": "models.wire", "ChainNode": "models.wire", "ChainResponse": "models.wire", "ChainEvent": "models.wire",
    "TurnRequest": "models.wire", "RunResult": "models.wire", "RunEvent": "models.events",
    # tools
    "tool": "config.user_code.tool_decorator", "tools_of": "config.user_code.tool_decorator", "ToolContext": "models.values",
    # errors
    "CantataError": "errors", "ConfigError": "errors", "RunError": "errors", "StepError": "errors", "UnavailableError": "errors",
    "UnknownRunError": "errors",
}  # fmt: skip

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
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names too, so that shells complete them."""
    return sorted({*globals(), *__all__})
