"""A stack whose agents ask servers that others wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import TurnRun
from cantata.flows.definitions import Agent, Definitions, Model, Tool
from tests.integration.fleet import agent_stage

PATIENCE_S = 120.0  # a small model on a busy machine
FUNCTIONS = Path(agent_stage.__file__).parent


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClient]:
    """A stack of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-proxy")
        patch.setenv("LITELLM_PROXY_API_KEY", "sk-proxy")
        patch.setenv("MEMORY_FILE_PATH", str(tmp_path_factory.mktemp("memory") / "memory.jsonl"))
        with Client.embedded(tmp_path_factory.mktemp("stack"), config=Definitions(), agents=1, tools=1) as client:
            yield client


Ask = Callable[..., TurnRun]


@pytest.fixture
def ask(client: EmbeddedClient) -> Iterator[Ask]:
    """Has an agent with these fields answer; `models` and `tools` are those of its configuration."""
    clients: list[Client] = []

    def asked(
        text: str = "go", *, models: dict[str, Any], tools: dict[str, Any] | None = None, **fields: Any
    ) -> TurnRun:
        fields = {"tools": [*(tools or {})], **fields}
        definitions = Definitions(
            folder=str(FUNCTIONS),
            agents={"it": Agent.model_validate({"model": next(iter(models)), "retries": 0, **fields})},
            models={name: Model.model_validate(model) for name, model in models.items()},
            tools={name: Tool.model_validate(tool) for name, tool in (tools or {}).items()},
        )
        clients.append(Client(client.redis_url, config=definitions))
        run = clients[-1].submit_turn(text, agent="it")
        run.result(PATIENCE_S)
        return run

    yield asked
    for each in clients:
        each.close()
