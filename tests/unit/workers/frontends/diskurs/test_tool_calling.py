"""Tools of a folder are made as the run's own configuration declares them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cantata.flows.definitions import Definitions
from cantata.ledger.records import Begun
from cantata_frontends.diskurs.conversation_config import (
    CodeReference,
    ConversationAgent,
    ConversationConfig,
    ConversationDependency,
    ConversationTool,
)
from cantata_frontends.diskurs.handovers import extension_of
from cantata_workers.frontends.diskurs import tool_calling
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext

SHOP = """
class Store:
    def __init__(self, name):
        self.name = name

def create_price(configs, store=None):
    def price(): ...
    price.__doc__ = f"{configs} of {store and store.name}"
    return price
"""
CREATED = SHOP.replace(
    "class Store:",
    """
from diskurs.protocols import ToolDependency

class Store(ToolDependency):
    @classmethod
    def create(cls, name, city):
        return cls(f"{name} in {city}")
""",
)


def described(folder: Path, tool: dict[str, Any], shop: str = SHOP, **store: str) -> str:
    """What a model is told of the tool `price`."""
    (folder / "shop.py").write_text(shop)
    made_by = CodeReference(file="shop.py", name="Store")
    config = ConversationConfig(
        first_contact="a",
        agents={"a": ConversationAgent(kind="heuristic")},
        tools={"price": ConversationTool(function=CodeReference(file="shop.py", name="price"), **tool)},
        dependencies={"store": ConversationDependency(made_by=made_by, parameters={**store})},
    )
    definitions = Definitions(folder=str(folder), extension=extension_of(config))
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    return tool_calling.schema_of(
        StepContext(cast(Begun, SimpleNamespace(run_id="r", definitions="d")), process), "price"
    ).description


def test_another_configuration_of_the_folder_has_tools_of_its_own(tmp_path: Path) -> None:
    assert described(tmp_path, {"configs": {"vat": 7}}) == "{'vat': 7} of None"
    assert described(tmp_path, {"configs": {"vat": 19}}) == "{'vat': 19} of None"
    assert described(tmp_path, {"dependencies": ["store"]}, name="a") == "{} of a"
    assert described(tmp_path, {"dependencies": ["store"]}, name="b") == "{} of b"


def test_a_dependency_with_create_is_made_by_it_and_told_its_name(tmp_path: Path) -> None:
    assert described(tmp_path, {"dependencies": ["store"]}, CREATED, city="Bern") == "{} of store in Bern"
