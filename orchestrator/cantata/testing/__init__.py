"""Test doubles and tests of flows: a scripted model server, runs inside the test's process, a stack whose processes can be killed.

In Python:

    with ScriptedModels([Rule(match="capital", reply="Paris")]) as server:
        ...  # with OPENAI_API_BASE=server.url and any OPENAI_API_KEY
        server.journal()

As a process, which exits with the one that started it:

    python -m cantata.testing script.yaml --port 8000

A script is a list of rules. The first rule that matches a request and has uses left answers it, so rules with `times: 1` are a sequence,
and rules with `after_tools: n` a loop of tool calls. Requests that no rule matches are echoed. `GET /journal` returns the requests so far,
`POST /script` replaces the rules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantata.testing.comparisons import Comparison, Difference, Evaluation
    from cantata.testing.inline import run_inline
    from cantata.testing.killable_stack import FAULT_POINTS, KillableStack
    from cantata.testing.recordings import evaluate, replay
    from cantata.testing.rules import Rule, ToolCall
    from cantata.testing.server import ScriptedModels

_HOMES = {
    "Comparison": "comparisons", "Difference": "comparisons", "Evaluation": "comparisons", "FAULT_POINTS": "killable_stack",
    "KillableStack": "killable_stack", "Rule": "rules", "ScriptedModels": "server", "ToolCall": "rules", "evaluate": "recordings",
    "replay": "recordings", "run_inline": "inline",
}  # fmt: skip

__all__ = [
    "FAULT_POINTS", "Comparison", "Difference", "Evaluation", "KillableStack", "Rule", "ScriptedModels", "ToolCall", "evaluate", "replay",
    "run_inline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a public name, imported when it is first used: pytest loads the plugin in this package for every suite."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
