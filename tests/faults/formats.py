"""What the suite's runs are made of that begin as LangSwarm's file, as a Diskurs folder and as a builder's chains."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from cantata.config import loading
from cantata.flows.definitions import Definitions
from cantata.flows.wire import ChainRequest
from cantata_frontends.chainbuilder import plan, run_request
from cantata_frontends.chainbuilder.builder_arguments import read_base, read_parts

HERE = Path(__file__).parent
DESK = "desk"
"""The Diskurs folder, beside the journal."""
SOURCES, SINK = ("lena", "milo"), "nora"
"""The chains of the builder's group: two side by side, and the one that depends on them."""

FOLDER = {
    "config.yml": """
firstContact: chief
llms: [{name: main, type: openai, modelName: gpt-4o-mini, modelMaxTokens: 8192, apiKey: "${OPENAI_API_KEY}"}]
tools: [{name: price, functionName: price, modulePath: prices.py}]
agents:
  - name: chief
    type: conductor
    llm: main
    prompt: {type: conductor_prompt, location: chief, promptArgumentClass: Choice, longtermMemoryClass: Sale}
    topics: [clerk]
  - name: clerk
    type: multistep
    llm: main
    tools: [price]
    prompt: {type: multistep_prompt, location: clerk, promptArgumentClass: Offer}
    topics: [chief]
""",
    "prices.py": '''
import time

from diskurs import tool


@tool
def price(pieces: int, seconds: float) -> int:
    """Tells what some pieces cost.

    :param pieces: how many
    :param seconds: how long to think
    """
    time.sleep(seconds)
    return 3 * pieces
''',
    "chief/system_template.jinja2": "You choose who goes on.",
    "chief/user_template.jinja2": "chief <{{ user_query }}>",
    "chief/prompt.py": """
from dataclasses import dataclass

from diskurs import InputField, LongtermMemory, OutputField, PromptArgument


@dataclass
class Choice(PromptArgument):
    user_query: InputField[str] = ""
    next_agent: OutputField[str] = ""


@dataclass
class Sale(LongtermMemory):
    user_query: str = ""
    answer: str = ""


def can_finalize(sale: Sale) -> bool:
    return bool(sale.answer)


def finalize(sale: Sale) -> dict:
    return {"answer": sale.answer}
""",
    "clerk/agent_description.txt": "Knows prices.",
    "clerk/system_template.jinja2": "You sell.",
    "clerk/user_template.jinja2": "clerk <{{ user_query }}>",
    "clerk/prompt.py": """
from dataclasses import dataclass

from diskurs import InputField, OutputField, PromptArgument


@dataclass
class Offer(PromptArgument):
    user_query: InputField[str] = ""
    answer: OutputField[str] = ""


def is_final(offer: Offer) -> bool:
    return bool(offer.answer)
""",
}
"""A conductor whose model chooses an agent with a tool."""


def write_desk(folder: Path) -> None:
    """Write the Diskurs folder."""
    for name, text in FOLDER.items():
        path = folder / DESK / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


@cache
def workflows(_: Path) -> Definitions:
    """LangSwarm's file, compiled."""
    return loading.load(HERE / "workflow.yaml")


@cache
def desk(folder: Path) -> Definitions:
    """The Diskurs folder that was written into a folder, compiled."""
    return loading.load(folder / DESK / "config.yml")


def group(model: str, text: str) -> tuple[ChainRequest, Definitions]:
    """What a ChainBuilder submits for a group on a text, and what it may name."""
    made = plan.BuilderPlan(base=read_base({"name": model}, "{instruction}", "normal", 60.0))
    for name in SOURCES:
        made = _with(made, name, f"{name} <{{input}}>", "parallel")
    made = _with(made, SINK, f"{SINK} <{{input}}> {{{'} {'.join(SOURCES)}}}", "serial", *SOURCES)
    ids = made.group("group")
    return run_request.request_of(made, ids, text, {}, timeout_s=None), run_request.definitions_of(made, ids, str(HERE))


def _with(old: plan.BuilderPlan, name: str, instruction: str, mode: plan.Mode, *needs: str) -> plan.BuilderPlan:
    return plan.create(old, name, read_parts([instruction], "normal"), mode=mode, group="group", dependencies=needs)
