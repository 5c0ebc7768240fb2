"""What a worker must be able to import before it is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config import loading
from cantata.workers.code.readiness import CONFIGURATION, CodeReadiness, functions_for

CODE = "from cantata import workflow\nfrom pydantic import BaseModel\nclass Answer(BaseModel): ...\n" + "".join(
    f"def {name}(): ...\n" for name in ("plain", "shown", "heavy", "says", "breaks", "routes")
)
FLOW = "from cantata import workflow\n@workflow\nasync def flow(wf): ...\n@workflow\nasync def offered(wf): ...\n"
CONFIG = """
tools:
  plain: {function: "ours:plain"}
  shown: {function: "ours:shown"}
  heavy: {function: "ours:heavy", queue: gpu}
agents:
  clerk:
    description: Writes.
    model: openai/gpt-4o-mini
    instructions: [{function: "ours:says"}, "{input}"]
    chainbreakers: ["ours:breaks"]
    tools: [shown, offered]
    output: {class: "ours:Answer"}
  other: {description: Reads., model: openai/gpt-4o-mini, queue: apart, tools: [plain]}
teams:
  desk: {mode: router, agents: [clerk, other], rules: [{function: "ours:routes"}]}
workflows:
  flow: {function: "flows:flow"}
  offered: {function: "flows:offered", queue: gpu}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with code in its folder, which is the worker's own."""
    for name, text in {"ours.py": CODE, "flows.py": FLOW, "cantata.yaml": CONFIG}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path / "cantata.yaml"))
    return tmp_path


@pytest.mark.parametrize(
    ("queue", "needed"),
    [
        ("tools", {"ours:plain", "ours:shown", "ours:says", "ours:breaks", "ours:routes", "flows:flow"}),
        ("agents", {"ours:shown", "flows:offered", "ours:Answer"}),
        ("apart", {"ours:plain"}),
        ("gpu", {"ours:heavy", "flows:offered"}),
    ],
)
def test_a_worker_needs_what_the_steps_of_its_queues_import(folder: Path, queue: str, needed: set[str]) -> None:
    assert functions_for(loading.load(folder / "cantata.yaml"), [queue]) == needed


def test_a_module_that_only_others_need_keeps_nobody_else_from_being_ready(folder: Path) -> None:
    (folder / "flows.py").write_text(f"import not_there\n{FLOW}")
    found = {queue: CodeReadiness([queue]) for queue in ("tools", "agents", "apart", "gpu", "coordinator", "tasks", "webhooks")}
    for each in found.values():
        each.check()

    assert {queue for queue, each in found.items() if each.faults} == {"tools", "agents", "gpu"}
    assert found["tools"].faults == {"flows": "flows:flow: ModuleNotFoundError: No module named 'not_there' (flows.py, line 1)"}


def test_a_module_that_is_not_there_counts_for_those_who_import_it(folder: Path) -> None:
    (folder / "ours.py").unlink()
    found = {queue: CodeReadiness([queue]) for queue in ("tools", "gpu", "agents", "more")}
    for each in found.values():
        each.check()

    assert {queue: [*each.faults] for queue, each in found.items()} == {"tools": ["ours"], "gpu": ["ours"], "agents": ["ours"], "more": []}


def test_a_configuration_that_cannot_be_read_keeps_those_who_import_from_being_ready(folder: Path) -> None:
    (folder / "cantata.yaml").write_text("tools: [")
    tools, coordinator = CodeReadiness(["tools"]), CodeReadiness(["coordinator"])
    for each in (tools, coordinator):
        each.check()

    assert [*tools.faults] == [CONFIGURATION]
    assert coordinator.faults == {}

    (folder / "cantata.yaml").write_text(CONFIG)
    tools.check()
    assert tools.faults == {}
