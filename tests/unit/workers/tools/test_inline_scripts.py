"""A script of a workflow is read from the worker's own files, by its digest; what a run stores is not executed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cantata.config import loading
from cantata.errors import ImportFailedError, StepError
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Spec
from cantata.ledger.records import Begun
from cantata.values import JsonValue
from cantata_workers.process import user_code
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.tools import inline_scripts
from cantata_workers.tools.functions import tool_call

FLOW = """
agents: []
workflows:
  w:
    - {{id: shout, function: loud, script: "{first}def loud(text): return text.upper() + '{end}'", args: {{text: '${{user_input}}'}}}}
"""
TOOL = "loud@w.shout"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_CONFIG", raising=False)
    monkeypatch.setattr(inline_scripts, "_functions", {})


def written(folder: Path, end: str = "!", first: str = "") -> Definitions:
    """What a run of the workflow stores. `first` is the first line of its script."""
    folder.mkdir(exist_ok=True)
    (folder / "flow.yaml").write_text(FLOW.format(end=end, first=f"{first}\\n"))
    return Definitions.model_validate_json(loading.load(folder / "flow.yaml").model_dump_json())


def work(definitions: Definitions, *, queue: str = "tools") -> StepContext:
    params: dict[str, JsonValue] = {"section": "tools", "tool": TOOL, "input": {"text": "hi"}}
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    return StepContext(
        Begun("run", "step", 1, "worker", Spec(kind="tool.call", queue=queue, params=params), None, 0, {}, ""), process
    )


def test_a_run_stores_the_digest_of_a_script_and_no_code(tmp_path: Path) -> None:
    definitions = written(tmp_path)

    assert "upper" not in definitions.model_dump_json()
    script = definitions.tools[TOOL].script
    assert script is not None
    assert (script.file, script.function, len(script.digest)) == ("flow.yaml", "loud", 64)
    assert tool_call(work(definitions)).output == "HI!"


def test_code_that_is_stored_with_a_run_is_not_executed(tmp_path: Path) -> None:
    stored: Any = {
        "function": "cantata.frontends.langswarm.workflows.inputs:script",
        "values": {"script_": "def loud(text): return 1"},
    }
    definitions = Definitions.model_validate({"folder": str(tmp_path), "tools": {TOOL: stored}})

    with pytest.raises(StepError, match="cannot be imported"):
        tool_call(work(definitions))


def test_a_script_that_was_changed_since_is_refused_and_not_run(tmp_path: Path) -> None:
    definitions = written(tmp_path)
    written(tmp_path, end="?")

    why = inline_scripts.refusal(work(definitions))

    assert "no script 'loud' with the digest" in why
    assert "'flow.yaml': give it the configuration" in why
    with pytest.raises(StepError):
        tool_call(work(definitions))
    written(tmp_path)
    assert inline_scripts.refusal(work(definitions)) == ""


@pytest.mark.parametrize("own", ["flow.yaml", ""])
def test_a_worker_elsewhere_reads_the_file_of_its_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    definitions = written(tmp_path / "here").model_copy(update={"folder": "/nowhere/on/this/machine"})
    assert inline_scripts.refusal(work(definitions))

    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path / "here" / own))

    assert inline_scripts.refusal(work(definitions)) == ""
    assert tool_call(work(definitions)).output == "HI!"


def test_no_file_outside_the_folder_is_read(tmp_path: Path) -> None:
    definitions = written(tmp_path)
    (tmp_path / "inner").mkdir()
    tool = definitions.tools[TOOL]
    assert tool.script
    outside = tool.model_copy(update={"script": tool.script.model_copy(update={"file": "../flow.yaml"})})

    assert inline_scripts.refusal(
        work(definitions.model_copy(update={"folder": str(tmp_path / "inner"), "tools": {TOOL: outside}}))
    )


@pytest.mark.parametrize("queue", ["agents", "coordinator"])
def test_scripts_run_in_the_tools_pool_only(tmp_path: Path, queue: str) -> None:
    with pytest.raises(StepError, match="workers of the queue 'tools' only"):
        tool_call(work(written(tmp_path), queue=queue))


def test_a_script_whose_package_this_worker_lacks_is_refused_to_it_and_one_that_is_wrong_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = written(tmp_path, first="import lacking_package.part as part")
    with pytest.raises(ImportFailedError, match="No module named 'lacking_package'") as caught:
        tool_call(work(definitions))
    assert caught.value.module == "lacking_package"

    (tmp_path / "later" / "lacking_package").mkdir(parents=True)
    (tmp_path / "later" / "lacking_package" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "later")

    assert tool_call(work(definitions)).output == "HI!"
    with pytest.raises(StepError, match="division by zero") as failed:
        tool_call(work(written(tmp_path, first="1 / 0")))
    assert not isinstance(failed.value, ImportFailedError), "its text is the same on all workers"


def test_a_script_whose_helper_this_worker_cannot_import_is_refused_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script_helper.py").write_text("def oops(:\n")
    monkeypatch.syspath_prepend(tmp_path)

    for first, fault in (("import script_helper", "SyntaxError"), ("import script_reader", "FileNotFoundError")):
        (tmp_path / "script_reader.py").write_text("open('/not/here')\n")
        with pytest.raises(ImportFailedError, match=fault):
            tool_call(work(written(tmp_path / "flows", first=first)))


@pytest.mark.parametrize("helper", ["helper_of_script.py", "helpers_of_script/sums.py"])
def test_a_script_whose_helper_was_corrected_is_called(
    helper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [user_code.Finder(), *sys.meta_path])  # as in a worker
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / helper
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").write_text("")
    file.write_text("def oops(:\n")
    step = work(written(tmp_path / "flows", first=f"import {helper.removesuffix('.py').replace('/', '.')}"))
    with pytest.raises(ImportFailedError, match="SyntaxError"):
        tool_call(step)

    file.write_text("def fine(): ...\n")

    assert tool_call(step).output == "HI!"


def test_a_script_that_ends_its_process_is_tried_in_another_one_if_a_worker_died_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "ends_it.py").write_text("import os\nos._exit(3)\n")
    step = work(written(tmp_path, first="import ends_it"))

    with (
        user_code.careful(True),
        pytest.raises(ImportFailedError, match=r"'flow\.yaml:loud' cannot be imported: the process .* status 3"),
    ):
        tool_call(step)
