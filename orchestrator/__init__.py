"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agentchain import AgentChain
    from orchestrator.chainbuilder import ChainBuilder
    from orchestrator.client import ChainRun, Client, Run, TurnRun
    from orchestrator.errors import CantataError, ConfigError, RunError, UnavailableError, UnknownRunError
    from orchestrator.memory import MemoryBank
    from orchestrator.models.events import RunEvent
    from orchestrator.models.values import ToolContext
    from orchestrator.models.wire import ChainEvent, ChainNode, ChainRequest, ChainResponse, RunResult
    from orchestrator.planning.tool_calls import get_function_name_from_tool_call
    from orchestrator.promptchain import AgenticStepProcessor, PromptChain, create_memory_chain, memory_function
    from orchestrator.tooling import tool, tools_of

__version__ = "0.1.0"

_HOMES = {
    # asking for runs
    "Client": "client", "Run": "client", "TurnRun": "client", "ChainRun": "client",
    # chains of prompts and functions, written in Python
    "PromptChain": "promptchain", "AgenticStepProcessor": "promptchain", "get_function_name_from_tool_call": "planning.tool_calls",
    "AgentChain": "agentchain", "ChainBuilder": "chainbuilder",
    # what is remembered
    "MemoryBank": "memory", "create_memory_chain": "promptchain", "memory_function": "promptchain",
    # what goes in and comes out
    "ChainRequest": "models.wire", "ChainNode": "models.wire", "ChainResponse": "models.wire", "ChainEvent": "models.wire",
    "RunResult": "models.wire", "RunEvent": "models.events",
    # what makes a function a tool, and what a tool is told
    "tool": "tooling", "tools_of": "tooling", "ToolContext": "models.values",
    # what can go wrong
    "CantataError": "errors", "ConfigError": "errors", "RunError": "errors", "UnavailableError": "errors", "UnknownRunError": "errors",
}  # fmt: skip

__all__ = [
    "AgentChain",
    "AgenticStepProcessor",
    "CantataError",
    "ChainBuilder",
    "ChainEvent",
    "ChainNode",
    "ChainRequest",
    "ChainResponse",
    "ChainRun",
    "Client",
    "ConfigError",
    "MemoryBank",
    "PromptChain",
    "Run",
    "RunError",
    "RunEvent",
    "RunResult",
    "ToolContext",
    "TurnRun",
    "UnavailableError",
    "UnknownRunError",
    "create_memory_chain",
    "get_function_name_from_tool_call",
    "memory_function",
    "tool",
    "tools_of",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `submit --help` must not load Celery."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
