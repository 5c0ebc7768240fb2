"""The page of workflows in Python is a project of a user: its files, lines and program are run with the stack of `submit up`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.testing import Rule, ScriptedModels
from tests.acceptance.pages import Block, blocks, lines, words
from tests.waiting import until

pytestmark = pytest.mark.slow("a stack of its own, and some ten commands")
BLOCKS = [block for block in blocks() if block.page == "docs/python-workflows.md"]
PROGRAMS = {"submit": [sys.executable, "-m", "cantata.surfaces.cli"], "python": [sys.executable]}
PATIENCE_S = 60.0
NOTES = "Light is scattered by small molecules, the blue of it most."


class Project:
    """A folder with the files of the page, in which its lines are run."""

    def __init__(self, folder: Path, url: str) -> None:
        own = {"OPENAI_API_BASE": url, "OPENAI_API_KEY": "sk-scripted"}
        self.environment = {**os.environ, **own, "CANTATA_HOME": str(folder / "home"), "PYTHONPATH": str(folder)}
        self.environment.pop("REDIS_URL", None)
        self.folder = folder
        for block in BLOCKS:
            if block.file:
                (folder / block.file).write_text(block.text)

    def run(self, line: str) -> str:
        """What a line prints."""
        command = words(line)
        command[:1] = PROGRAMS[command[0]]
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, f"{line}: {ran.stderr}"
        return ran.stdout.strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project of the page."""
    rules = [
        Rule(match="Note what matters", reply=NOTES),
        Rule(match="Summarize", reply="Blue light is scattered most."),
    ]
    with ScriptedModels(rules) as models:
        made = Project(tmp_path_factory.mktemp("desk"), models.url)
        try:
            yield made
        finally:
            made.run("submit down")


def test_the_lines_of_the_page(project: Project) -> None:
    up, begin, signal, result, query = [line for block in BLOCKS if block.language == "sh" for line in lines(block)]
    project.run(up)
    run = project.run(begin)
    until(lambda: "waiting_signal" in project.run(f"submit runs show {run} --json"), "the question")

    assert project.run(query.replace("RUN", run)) == '{"notes": 2, "topics": 2}'
    project.run(signal.replace("RUN", run))

    assert "Blue light is scattered most." in project.run(result.replace("RUN", run))
    shown = project.run(f"submit runs show {run}")
    assert all(f"{name}" in shown for name in ("0.researcher", "2.count_words", "3.wait/approve", "4.writer")), shown
    assert "@advance" not in shown
    assert [line.split()[-1][:8] for line in shown.splitlines() if "3.wait/approve" in line] == ["desk.py:"], shown


def test_the_program_of_the_page(project: Project) -> None:
    project.run("submit up --config desk.yaml")

    assert project.run("python ask.py") == "Blue light is scattered most."


def test_the_test_of_the_page(project: Project) -> None:
    assert "1 passed" in project.run("python -m pytest -p no:cacheprovider test_desk.py")


def test_the_check_that_the_page_names(project: Project) -> None:
    assert project.run("submit check desk:answer") == "desk:answer: no faults (a workflow in Python)"


def test_the_patch_of_the_page_is_python() -> None:
    patch = next(block for block in BLOCKS if "wf.patched" in block.text)
    indented = "".join(f"    {line}\n" for line in patch.text.splitlines())

    compile(f"async def changed(wf, question):\n{indented}", str(patch), "exec")


def test_every_block_is_run() -> None:
    def is_run(block: Block) -> bool:
        return bool(block.file) or block.language == "sh" or "wf.patched" in block.text

    assert [block for block in BLOCKS if not is_run(block)] == []
