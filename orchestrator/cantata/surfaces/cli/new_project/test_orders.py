"""`pytest` runs the agent and the chain of configs/default.yaml here: no workers, no Redis, and a model with scripted answers."""

from __future__ import annotations

from pathlib import Path

from cantata import TurnRequest
from cantata.testing import Rule, ScriptedModels, ToolCall, run_inline

CONFIG = Path(__file__).parent / "configs" / "default.yaml"


def test_the_clerk_looks_the_order_up(scripted_model: ScriptedModels) -> None:
    scripted_model.script(
        [
            Rule(after_tools=0, tool_calls=(ToolCall(name="order_status", arguments={"order": "A-1042"}),)),
            Rule(after_tools=1, reply="It arrives on Thursday."),
        ]
    )

    result = run_inline(TurnRequest(text="Where is my order A-1042?"), definitions=CONFIG, model="openai/scripted")

    assert result.output == "It arrives on Thursday."
    assert "left the warehouse on Monday" in str(scripted_model.requests[1])  # what the tool returned


def test_the_chain_looks_the_order_up_without_a_model() -> None:
    result = run_inline("status", {"order": "A-1042"}, definitions=CONFIG)

    assert result.final_output == "left the warehouse on Monday, arrives on Thursday"
