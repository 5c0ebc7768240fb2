"""`python -m tests.bench.walk`: the files and functions of ours that a run enters, and how often it goes from one file to another.

Each shape runs three times in one process, by `run_inline`: the first two warm what a process keeps, the third is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from cantata import TurnRequest
from cantata.testing import Rule, ScriptedModels, ToolCall, run_inline

TOP = Path(__file__).parents[2]
PACKAGES = tuple(str(TOP / folder) for folder in ("orchestrator", "workers"))
MODEL_SERVER = str(TOP / "orchestrator/cantata/testing")  # of which the runner counts, but not the model's server
SHOP = '''
from cantata import Workflow, workflow


def add(text: str) -> str:
    """Return the text, with a mark."""
    return text + "!"


@workflow
async def flow(wf: Workflow, item: str) -> str:
    return await wf.call(add, await wf.call(add, item))
'''
CONFIG = """
tools: {add: {function: "shop:add"}}
agents: {clerk: {model: openai/gpt-5-mini, tools: [add]}}
workflows: {flow: {function: "shop:flow"}}
chains:
  answer:
    entry_node: a
    nodes:
      - {node_id: a, kind: tool, name: add, input_map: {text: input.item}, next_node: b}
      - {node_id: b, kind: tool, name: add, input_map: {text: a}}
"""


@dataclass
class Walk:
    """What a run entered."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    switches: int = 0
    """How often a call was in another file than the call before."""
    last: str = ""

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, if it is one of ours."""
        file = frame.f_code.co_filename
        if (
            event != "call"
            or not file.startswith(PACKAGES)
            or (file.startswith(MODEL_SERVER) and not file.endswith("inline.py"))
        ):
            return
        self.files.add(file)
        self.functions.add((file, frame.f_code.co_qualname))
        self.switches += file != self.last
        self.last = file


def walk(run: Callable[[], object]) -> Walk:
    """Return what the third call of a function entered."""
    run()
    run()
    found = Walk()
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def chain() -> None:
    """Run a chain of two tools."""
    assert run_inline("answer", {"item": "cake"}, definitions="conf.yaml").final_output == "cake!!"


def turn() -> None:
    """Run a turn of an agent that calls a tool."""
    assert run_inline(TurnRequest(text="cake", agent="clerk"), definitions="conf.yaml").output == "It is cake!"


def workflow() -> None:
    """Run a workflow in Python that calls two functions."""
    assert run_inline("flow", {"item": "cake"}, definitions="conf.yaml").final_output == "cake!!"


@contextmanager
def project() -> Iterator[None]:
    """Work in a folder with the code and the configuration of the shapes, beside a model that calls a tool once."""
    rules = [
        Rule(after_tools=0, tool_calls=(ToolCall(name="add", arguments={"text": "cake"}),)),
        Rule(after_tools=1, reply="It is cake!"),
    ]
    with tempfile.TemporaryDirectory() as folder, ScriptedModels(rules) as server:
        (Path(folder) / "shop.py").write_text(SHOP)
        (Path(folder) / "conf.yaml").write_text(CONFIG)
        os.environ |= {"OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "none"}
        os.chdir(folder)
        sys.path.insert(0, folder)
        yield


def main() -> None:
    """Print a line for each shape."""
    with project():
        print("shape     files  functions  switches")
        for shape in (chain, turn, workflow):
            found = walk(shape)
            print(f"{shape.__name__:<9} {len(found.files):>5} {len(found.functions):>10} {found.switches:>9}")
        os.chdir(TOP)


if __name__ == "__main__":
    main()
