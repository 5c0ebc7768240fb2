"""A stack whose workers execute the workflows of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.flows.definitions import Agent, Chain, Definitions, PythonWorkflow, Tool
from cantata.flows.wire import ChainNode
from cantata.operation import embedded, fault_points
from cantata.testing import Rule, ScriptedModels

HERE = Path(__file__).parent
PATIENCE_S = 40.0
RULES = [Rule(match="capital", reply="Paris")]
NAMES = (
    "row", "fan", "asyncio_fan", "caught", "uncaught", "broken", "approval", "sleeper", "first", "parent", "values", "journey", "stuck",
    "reads_a_socket", "misspelt", "not_json", "late_question", "tidy", "swallows", "leaves", "synchronized", "changes_values", "unique",
    "calls_back", "orders", "rounds", "nests_rounds", "hurried_gather", "group_fails", "sleeps_badly", "echo", "stubborn",
    "grouped_rounds", "paced_orders", "racers",
    "opens", "harmless", "spins", "greeting", "first_of", "cleans", "cleans_outside", "goes_on",
    "steady", "forgetful", "spiral", "many_rows",
    "report", "starts", "starts_later", "questioned", "questioned_outer", "naps", "questioned_parent", "questioned_rounds", "typed",
    "polls", "gives_up", "drops_a_child", "waits_busily",
)  # fmt: skip


def definitions(folder: Path = HERE) -> Definitions:
    """What the runs of these tests may name."""
    pair = Chain(
        entry_node="one", nodes=[ChainNode(node_id="one", kind="tool", name="add", input_map={"a": "input.a"})]
    )
    return Definitions(
        folder=str(folder),
        workflows={
            **{name: PythonWorkflow(function=f"desk:{name}") for name in NAMES},
            "hasty": PythonWorkflow(function="desk:cleans", cancel_grace_s=0),
        },
        tools={
            "add": Tool(function="desk:add"),
            **{name: Tool(function=f"desk:{name}", cheap=True) for name in ("mark", "forget")},
        },
        agents={
            "clerk": Agent(model="openai/gpt-4o-mini", retries=0),
            "foreman": Agent(model="openai/gpt-4o-mini", retries=0, tools=["greeting", "uncaught", "approval", "add"]),
        },
        chains={"pair": pair},
    )


@pytest.fixture(scope="package")
def models() -> Iterator[ScriptedModels]:
    """A model server."""
    with ScriptedModels(RULES) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", server.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        yield server


@pytest.fixture(scope="package")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which functions note what they did."""
    path = tmp_path_factory.mktemp("desk") / "journal"
    path.touch()
    return path


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory, journal: Path, models: ScriptedModels) -> Iterator[Client]:
    """A client with a stack of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DESK_JOURNAL", str(journal))
        patch.setenv(fault_points.VARIABLE, f"@{journal.parent / 'fault'}")
        with (
            embedded.Stack.start(tmp_path_factory.mktemp("stack"), tools=2, virtual_time=True) as stack,
            Client(stack.url, config=definitions()) as client,
        ):
            client.stack = stack  # type: ignore[attr-defined]  # for tests that kill its processes or skip time
            yield client
