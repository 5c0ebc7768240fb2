"""What a worker must be able to import before it is ready."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from cantata.config import loading
from cantata.config.user_code.import_trials import failures_of
from cantata.errors import ImportFailedError
from cantata_workers.frontends.diskurs.user_code.code_loading import CodeFolder
from cantata_workers.process import readiness, user_code
from cantata_workers.process.readiness import CONFIGURATION, CodeReadiness, functions_for
from tests.integration.fleet.diskurs_folders import TOOLS
from tests.waiting import until

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
LANGSWARM = "agents: []\nworkflows: {w: [{id: a, function: plus, script: 'import not_there\n\n    def plus(n): return n', args: {n: 1}}]}\n"


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
    found = {
        queue: CodeReadiness([queue])
        for queue in ("tools", "agents", "apart", "gpu", "coordinator", "tasks", "webhooks")
    }
    for each in found.values():
        each.check()

    assert {queue for queue, each in found.items() if each.faults} == {"tools", "agents", "gpu"}
    assert found["tools"].faults == {
        "flows": "flows:flow: ModuleNotFoundError: No module named 'not_there' (flows.py, line 1)"
    }


def test_a_module_that_is_not_there_counts_for_those_who_import_it(folder: Path) -> None:
    (folder / "ours.py").unlink()
    found = {queue: CodeReadiness([queue]) for queue in ("tools", "gpu", "agents", "more")}
    for each in found.values():
        each.check()

    assert {queue: [*each.faults] for queue, each in found.items()} == {
        "tools": ["ours"],
        "gpu": ["ours"],
        "agents": ["ours"],
        "more": [],
    }


def diskurs_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> None:
    """A Diskurs folder as the worker's own configuration."""
    for name, text in {**TOOLS, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("CANTATA_CONFIG", str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def test_each_file_of_a_diskurs_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {
        "agents/clerk/shops.py": "import not_there\n",
        "tools/desk_tools.py": f"{TOOLS['tools/desk_tools.py']}\ndel Shelf\n",
    }
    diskurs_folder(tmp_path, monkeypatch, broken)

    found = failures_of(str(tmp_path), [], loading.load(tmp_path))

    assert found == {
        "agents/conductor/prompt.py": None,
        "agents/conductor/prompt.py:MyLongtermMemory": None,
        "agents/clerk/prompt.py": "ModuleNotFoundError: No module named 'not_there' (shops.py, line 1)",
        "agents/clerk/prompt.py:Sale": "ModuleNotFoundError: No module named 'not_there' (shops.py, line 1)",
        "tools/desk_tools.py": None,
        "tools/desk_tools.py:Shelf": "tools/desk_tools.py has no function or class 'Shelf'",
    }


@pytest.mark.slow("imports in two processes of their own")
def test_a_diskurs_folder_that_cannot_be_imported_keeps_those_who_execute_its_code_from_being_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "agents/clerk/shops.py"
    monkeypatch.setattr(user_code, "_some_end_processes", False)
    diskurs_folder(tmp_path, monkeypatch, {file: "import os\nos._exit(3)\n"})
    found = {queue: CodeReadiness([queue]) for queue in ("agents", "tools")}
    for each in found.values():
        each.check()

    assert found["tools"].faults == {
        tmp_path.name: "agents/clerk/prompt.py: the process that imports it ended with status 3"
    }
    assert found["agents"].faults == {}, "its steps import nothing of the folder"
    with pytest.raises(ImportFailedError, match="cannot be imported: the process that imports it ended"):
        CodeFolder(str(tmp_path)).module("agents/clerk/prompt.py", {})  # in this process, as a step would

    (tmp_path / file).write_text(TOOLS[file])
    found["tools"].check()
    assert found["tools"].faults == {}
    assert CodeFolder(str(tmp_path)).module("agents/clerk/prompt.py", {"desk_tools": "tools/desk_tools.py"}).Sale


def test_scripts_in_files_of_workflows_are_imported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workflows.yaml").write_text(LANGSWARM)
    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path))
    tools, agents = CodeReadiness(["tools"]), CodeReadiness(["agents"])
    for each in (tools, agents):
        each.check()

    why = "ModuleNotFoundError: No module named 'not_there' (workflows.yaml (script), line 1)"
    assert tools.faults == {"workflows.yaml": f"workflows.yaml:plus: {why}"}
    assert agents.faults == {}


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


def test_a_check_that_raises_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[dict[str, str] | Exception] = [{"ours": "it is not there"}, OSError("no room for a process"), {}]

    def faults(queues: Collection[str]) -> dict[str, str]:
        found = results.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(readiness, "_faults", faults)
    monkeypatch.setattr(readiness, "RETRY_S", 0.01)
    check = CodeReadiness(("tools",))
    check.check()
    assert check.faults == {"ours": "it is not there"}

    check.check_until_ready(threading.Event())

    until(lambda: not check.faults, "a check without faults")
    assert results == []
