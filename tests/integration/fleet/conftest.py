"""A real stack for the tests of this folder: Valkey, a coordinator, two agents workers, a tools worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import Run
from cantata.flows.definitions import Agent, Chain, Command, Definitions, Limits, OutputSchema, Synthesizer, Team, Tool
from cantata.flows.wire import ChainNode, ChainResponse
from cantata.testing import ScriptedModels
from tests.integration.fleet.agent_stage import AgentStage

PICK = {"type": "object", "properties": {"pick": {"enum": ["a", "b"]}}, "required": ["pick"]}
MAX_PAUSE_S = 30.0
MERGE = "merge '{user_input}' {not_a_placeholder} of {agent_responses}"

HERE = Path(__file__).parent
FUNCTIONS = (
    "slow",
    "slow_async",
    "held",
    "deadly",
    "fail",
    "fail_until",
    "leave",
    "odd",
    "large",
    "chatty",
    "add",
    "echo",
)


def definitions() -> Definitions:
    """What the runs of these tests may name."""
    tools = {name: Tool(function=f"fleet_tools:{name}") for name in FUNCTIONS}
    tools["pure"] = Tool(function="fleet_tools:dies_once", pure=True)
    tools |= {
        name: Tool(function=f"fleet_tools:{name}")
        for name in ("whose_app", "whose_app_async", "cancel_itself", "interrupt_async")
    }
    tools["timed"] = Tool(function="fleet_tools:dies_once", pure=True, timeout_s=1.0, retries=1)
    tools["hang"] = Tool(function="fleet_tools:slow", timeout_s=1.0)
    return Definitions(
        folder=str(HERE),
        tools=tools,
        skills={"sum": Tool(function="fleet_tools:add")},
        commands={
            "say": Command(command=["/bin/echo"]),
            "refuse": Command(command=["/bin/false"]),
            "sleep": Command(command=["sleep"]),
        },
        agents={
            **{
                name: Agent(model="openai/gpt-4o-mini", retries=2, instructions=[f"{name} <{{input}}>"])
                for name in ("ann", "bob", "cleo")
            },
            "twice": Agent(
                model="openai/gpt-4o-mini",
                instructions=["first <{input}>", "second <{input}>"],
                system="You are twice.",
            ),
            "keyless": Agent(model="anthropic/claude-3-5-haiku-latest", retries=0),
            "nobody": Agent(model="no-such-provider/model", retries=0),
            "picker": Agent(model="openai/gpt-4o-mini", output=OutputSchema.model_validate({"schema": PICK})),
        },
        teams={
            "row": Team(mode="pipeline", agents=["ann", "bob", "cleo"]),
            "longer": Team(mode="pipeline", agents=["ann", "twice", "ann"]),
            "all": Team(mode="broadcast", agents=["ann", "bob", "cleo"]),
            "merged": Team(
                mode="broadcast",
                agents=["ann", "twice"],
                synthesizer=Synthesizer(model="openai/gpt-4o-mini", prompt=MERGE, retries=0),
            ),
            "first": Team(mode="broadcast", agents=["ann", "bob", "cleo"], min_responses=2),
            "hurried": Team(mode="broadcast", agents=["ann", "bob", "cleo"], deadline_s=3600.0),
        },
        chains={
            "adding": Chain(
                entry_node="one", nodes=[ChainNode(node_id="one", kind="tool", name="add", input_map={"a": "input.a"})]
            )
        },
        limits=Limits(output_bytes=16_000_000),
    )


@pytest.fixture(scope="session")
def models() -> Iterator[ScriptedModels]:
    """A model server that every stack of these tests asks; nothing else can be reached."""
    with ScriptedModels() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", server.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        patch.delenv("ANTHROPIC_API_KEY", raising=False)
        yield server


@pytest.fixture(scope="package", autouse=True)
def asks_our_models(models: ScriptedModels) -> Iterator[None]:
    """Stacks of these tests ask our server, though those of another folder may have named theirs since ours was started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", models.url)
        yield


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory, asks_our_models: None) -> Iterator[EmbeddedClient]:
    """A client with a stack of its own, for all tests that leave it as they found it."""
    with Client.embedded(
        tmp_path_factory.mktemp("stack"), config=definitions(), agents=2, tools=2, virtual_time=True
    ) as client:
        yield client


@pytest.fixture(scope="package")
def victim(tmp_path_factory: pytest.TempPathFactory, asks_our_models: None) -> Iterator[EmbeddedClient]:
    """A stack that tests may hurt, in real time."""
    with Client.embedded(tmp_path_factory.mktemp("victim"), config=definitions(), agents=2, tools=2) as client:
        yield client


@pytest.fixture
def stage(client: EmbeddedClient, models: ScriptedModels) -> Iterator[AgentStage]:
    """Where agents are asked."""
    with AgentStage(client.redis_url, models) as stage:
        yield stage


class Journal:
    """What tools really did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[dict[str, Any]]:
        """All that was written."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def of(self, what: str, name: object = None) -> list[dict[str, Any]]:
        """The lines of one sort, of one name if it is given."""
        return [line for line in self.lines() if line["what"] == what and (name is None or line["name"] == name)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A file that tools write to."""
    return Journal(tmp_path / "journal.jsonl")


def skip_pauses(client: EmbeddedClient, run: Run) -> None:
    """Wait until a run is over, but for the pauses before its other tries."""
    for event in run.log(timeout_s=40.0):
        if event.type == "retry":
            client.skip(MAX_PAUSE_S)


def ask(
    client: Client, *nodes: dict[str, Any], entry: str | None = None, timeout_s: float = 40.0, **request: Any
) -> ChainResponse:
    """Run a chain to its end."""
    entry_node = entry or str(nodes[0]["node_id"])
    return client.submit_chain({"nodes": list(nodes), "entry_node": entry_node, **request}).result(timeout_s)


def tool(node_id: str, name: str, **fields: Any) -> dict[str, Any]:
    """A tool node; other fields than the node's own are its input."""
    own = {key: fields.pop(key) for key in list(fields) if key in ChainNode.model_fields}
    return {"node_id": node_id, "kind": "tool", "name": name, **({"input": fields} if fields else {}), **own}
