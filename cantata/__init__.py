"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has.

The public names, under the name of the distribution; they are those of the package `orchestrator`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator import (
        AgentChain,
        AgenticStepProcessor,
        CantataError,
        ChainBuilder,
        ChainEvent,
        ChainNode,
        ChainRequest,
        ChainResponse,
        ChainRun,
        Client,
        ConfigError,
        MemoryBank,
        PromptChain,
        Run,
        RunError,
        RunEvent,
        RunResult,
        ToolContext,
        TurnRun,
        UnavailableError,
        UnknownRunError,
        __version__,
        create_memory_chain,
        get_function_name_from_tool_call,
        memory_function,
        tool,
        tools_of,
    )  # fmt: skip

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
    "__version__",
    "create_memory_chain",
    "get_function_name_from_tool_call",
    "memory_function",
    "tool",
    "tools_of",
]

_HERE = Path(__file__).resolve().parents[1]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used. Raises ImportError if another package has the name of ours."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = importlib.import_module("orchestrator")
    place = Path(package.__file__ or next(iter(package.__path__))).resolve()
    if not place.is_relative_to(_HERE / "orchestrator"):
        raise ImportError(f"the package 'orchestrator' at {place} hides the one of Cantata; rename yours")
    return getattr(package, name)


def __dir__() -> list[str]:
    """Return the public names too, so that shells complete them."""
    return sorted({*globals(), *__all__})
