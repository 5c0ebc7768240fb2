"""The code of a folder: each file is a module of its own, and `diskurs` is there only while it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.errors import StepError
from orchestrator.models.conductors import Code
from workers.diskurs import compatibility, entities, fields
from workers.diskurs.code import Room, refusal_of


def room(folder: Path, **files: str) -> Room:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Room(str(folder))


def test_diskurs_is_importable_only_while_code_runs(tmp_path: Path) -> None:
    loaded = room(
        tmp_path, a__prompt="from diskurs.entities import PromptArgument\nfrom diskurs import prompt_field, PromptValidationError\n"
    )
    module = loaded.module("a/prompt.py")
    assert module.PromptArgument is entities.PromptArgument
    assert module.PromptValidationError is entities.PromptValidationError
    assert not [name for name in sys.modules if name.partition(".")[0] == "diskurs"]


def test_a_real_diskurs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_is_installed", lambda: True)
    with compatibility.importable():
        assert "diskurs" not in sys.modules


def test_files_of_the_same_name_are_apart_and_neighbours_are_found(tmp_path: Path) -> None:
    loaded = room(
        tmp_path, a__prompt="from words import NAME\n", a__words="NAME = 'a'\n", b__prompt="from words import NAME\n",
        b__words="NAME = 'b'\n", a__parallelize="from prompt import NAME as it\nimport prompt\n",
    )  # fmt: skip
    before = set(sys.modules)
    assert loaded.module("a/prompt.py").NAME == "a"
    assert loaded.module("b/prompt.py").NAME == "b"
    assert loaded.module("a/parallelize.py").prompt is loaded.module("a/prompt.py")
    assert not {"prompt", "words", "parallelize"} & (set(sys.modules) - before)
    assert str(tmp_path / "a") not in sys.path


def test_custom_modules_are_imported_by_name(tmp_path: Path) -> None:
    loaded = room(tmp_path, lib__sums="def add(a, b):\n    return a + b\n", a__prompt="import sums\n")
    module = loaded.module("a/prompt.py", {"sums": "lib/sums.py"})
    assert module.sums is loaded.module("lib/sums.py")


def test_annotations_of_classes_are_readable_afterwards(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom diskurs import InputField, PromptArgument\n"
    loaded = room(tmp_path, a__prompt=f"{text}@dataclass\nclass Mine(PromptArgument):\n    topic: InputField[str] = ''\n")
    mine = loaded.load(Code(file="a/prompt.py", name="Mine"))
    assert fields.accesses(mine) == {"topic": "input"}


def test_what_cannot_be_imported_is_told(tmp_path: Path) -> None:
    loaded = room(tmp_path, broken="1 / 0\n", fine="x = 1\n")
    with pytest.raises(StepError, match=r"broken\.py cannot be imported: ZeroDivisionError"):
        loaded.module("broken.py")
    with pytest.raises(StepError, match=r"fine\.py has no function or class 'y'"):
        loaded.load(Code(file="fine.py", name="y"))


def test_a_refusal_is_known_whoever_wraps_it() -> None:
    try:
        try:
            raise entities.PromptValidationError("Say a topic.")
        except entities.PromptValidationError as error:
            raise StepError("prompt.py raised") from error
    except StepError as error:
        assert refusal_of(error) == "Say a topic."  # noqa: PT017  # it is what was raised that is looked at
    assert refusal_of(StepError("else")) is None
