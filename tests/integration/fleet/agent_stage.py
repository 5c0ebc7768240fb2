"""Agents that a test declares, asked on a stack that stands, and what their models were asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.flows.definitions import Agent, Chain, Definitions, Model, Tool
from cantata.flows.wire import ChainNode, RunResult
from cantata.testing import ScriptedModels

HERE = Path(__file__).parent
PATIENCE_S = 40.0

FUNCTIONS = (
    "agent_tools:price",
    "agent_tools:meet",
    "agent_tools:leak",
    "fleet_tools:slow",
    "fleet_tools:fail",
    "fleet_tools:add",
)
TOOLS = {
    **{name.partition(":")[2]: Tool(function=name) for name in FUNCTIONS},
    "echo": Tool(function="fleet_tools:echo"),
    "large": Tool(function="fleet_tools:large", description="A large text."),
    "hang": Tool(function="fleet_tools:slow", timeout_s=0.5),
}
MAIN, OTHER = "openai/gpt-4o-mini", "openai/gpt-4o"
WRAP = Chain(
    entry_node="wrap", nodes=[ChainNode(node_id="wrap", kind="tool", name="echo", input_map={"text": "input.input"})]
)

Json = dict[str, Any]


def agent(**fields: Any) -> Agent:
    """An agent as configuration would declare it."""
    return Agent.model_validate({"model": MAIN, "retries": 0, **fields})


def call(name: str | None, /, call_id: str = "", **arguments: Any) -> Json:
    """A tool call in a script."""
    return {"name": name, "id": call_id, "arguments": arguments}


class AgentStage:
    """Asks agents. What a run may name goes with it, so each test declares its own on one stack."""

    def __init__(self, url: str, models: ScriptedModels) -> None:
        self._url = url
        self._models = models
        self._before = len(models.journal())
        self._clients = ExitStack()

    def script(self, *rules: Mapping[str, Any]) -> None:
        """What the models say from now on."""
        self._models.script(rules)

    def client(self, it: Agent, *, models: Mapping[str, Model] | None = None, **more: Any) -> Client:
        """A client whose definitions have the agent as `it`."""
        tools = {**TOOLS, **more.pop("tools", {})}
        agents = {"it": it, **more.pop("agents", {})}
        definitions = Definitions(
            folder=str(HERE), tools=tools, agents=agents, chains={"wrap": WRAP}, models=dict(models or {}), **more
        )
        return self._clients.enter_context(Client(self._url, config=definitions))

    def start(self, it: Agent, text: str = "go", **more: Any) -> TurnRun:
        """Have the agent begin."""
        return self.client(it, **more).submit_turn(text, agent="it")

    def ask(self, it: Agent, text: str = "go", **more: Any) -> RunResult:
        """Have the agent answer."""
        return self.start(it, text, **more).result(PATIENCE_S)

    def requests(self) -> list[Json]:
        """What was asked of models since the test began."""
        return cast("list[Json]", self._models.journal()[self._before :])

    def prompts(self) -> list[str]:
        """The last user message of each request."""
        return [str(request["text"]) for request in self.requests()]

    def messages(self, number: int = -1) -> list[Json]:
        """The messages of a request; of the last, if no number is given."""
        return cast("list[Json]", self.requests()[number]["body"]["messages"])

    def results(self, number: int = -1) -> list[Any]:
        """What a request told of tools, in order."""
        return [_read(message["content"]) for message in self.messages(number) if message["role"] == "tool"]

    def __enter__(self) -> Self:
        self._models.script([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
