"""The folder of a project, found from its sub-folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cantata.config import loading
from cantata.operation.embedded import Home
from cantata.operation.project_folder import project_folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stack is kept; the working directory is a folder below."""
    monkeypatch.delenv("CANTATA_HOME", raising=False)
    monkeypatch.delenv("CANTATA_CONFIG", raising=False)
    for name in (".cantata", "configs", "a/b"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project" / "configs" / "default.yaml").write_text("version: 1\n")
    record(tmp_path / "project", kept=True)
    monkeypatch.chdir(tmp_path / "project" / "a" / "b")
    return tmp_path / "project"


def record(folder: Path, *, kept: bool, config: str = "", pid: int = os.getpid()) -> None:
    text = json.dumps({"kept": kept, "config": config, "supervisor": {"identity": {"pid": pid}}})
    (folder / ".cantata" / "stack.json").write_text(text)


def test_a_folder_below_has_the_stack_and_the_configuration_of_its_project(project: Path) -> None:
    assert project_folder() == project
    assert Home().path == project / ".cantata"
    assert loading.find() == project / "configs" / "default.yaml"


def test_a_folder_of_its_own_or_a_stack_that_is_not_kept_ends_the_search(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = project / "a" / "b"

    record(project, kept=False)
    assert project_folder() == here

    record(project, kept=True)
    (here / ".cantata").mkdir()
    assert project_folder() == here

    (here / ".cantata").rmdir()
    monkeypatch.setenv("HOME", str(project))
    assert project_folder() == here
    assert loading.find() is None


def test_without_another_the_configuration_of_the_stack_counts(project: Path) -> None:
    record(project, kept=True, config=str(project / "shop.yaml"))
    assert loading.find() == project / "configs" / "default.yaml"

    (project / "configs" / "default.yaml").unlink()
    assert loading.find() == project / "shop.yaml"
    assert loading.find("other.yaml") == Path("other.yaml")
    record(project, kept=True, config=str(project / "shop.yaml"), pid=2**22 + 1)
    assert loading.find() is None, "that stack runs no more"
