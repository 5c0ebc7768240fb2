"""The code of a folder: each file is a module of its own, and `diskurs` is there only while it runs."""

from __future__ import annotations

import calendar
import sys
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Any

import pytest

from cantata.errors import ImportFailedError, StepError
from cantata_frontends.diskurs import code_text
from cantata_frontends.diskurs.conversation_config import CodeReference
from cantata_workers.frontends.diskurs.user_code import entities, fields
from cantata_workers.frontends.diskurs.user_code.code_loading import (
    INVALID,
    CodeFolder,
    code_folder_of,
    optional,
    refusal_of,
    without_modules,
)
from cantata_workers.tools import functions


def code_folder(folder: Path, **files: str) -> CodeFolder:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return CodeFolder(str(folder))


def test_diskurs_is_importable_only_while_code_runs(tmp_path: Path) -> None:
    loaded = code_folder(
        tmp_path,
        a__prompt="from diskurs.entities import PromptArgument\nfrom diskurs import prompt_field, PromptValidationError\n",
    )
    module = loaded.module("a/prompt.py")
    assert module.PromptArgument is entities.PromptArgument
    assert module.PromptValidationError is entities.PromptValidationError
    assert not [name for name in sys.modules if name.partition(".")[0] == "diskurs"]


def test_a_refusal_without_a_message_has_ours() -> None:
    assert refusal_of(entities.PromptValidationError("No such topic.")) == "No such topic."
    assert refusal_of(entities.PromptValidationError()) == INVALID


def test_names_that_code_only_annotates_with_are_importable(tmp_path: Path) -> None:
    names = "PromptArgument, LLMClient, Conversation, CallTool, ToolDependency"
    assert code_folder(tmp_path, prompt=f"from diskurs import {names}\nfrom diskurs.protocols import {names}\n").module(
        "prompt.py"
    )


def test_a_real_diskurs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_text, "is_installed", lambda: True)
    with entities.importable():
        assert "diskurs" not in sys.modules


def test_files_of_the_same_name_are_apart_and_neighbours_are_found(tmp_path: Path) -> None:
    loaded = code_folder(
        tmp_path,
        a__prompt="from words import NAME\n",
        a__words="NAME = 'a'\n",
        b__prompt="from words import NAME\n",
        b__words="NAME = 'b'\n",
        a__parallelize="from prompt import NAME as it\nimport prompt\n",
    )
    before = set(sys.modules)
    assert loaded.module("a/prompt.py").NAME == "a"
    assert loaded.module("b/prompt.py").NAME == "b"
    assert loaded.module("a/parallelize.py").prompt is loaded.module("a/prompt.py")
    assert not {"prompt", "words", "parallelize"} & (set(sys.modules) - before)
    assert str(tmp_path / "a") not in sys.path


def test_a_module_is_one_whoever_imports_it_first(tmp_path: Path) -> None:
    loaded = code_folder(
        tmp_path,
        known="class Known: ...\n",
        a__rules="from prompt import Topic\nfrom known import Known\n",
        a__prompt="class Topic: ...\n",
        b__prompt="from known import Known\n",
    )

    rules = loaded.module("a/rules.py")

    assert rules.Topic is loaded.module("a/prompt.py").Topic
    assert rules.Known is loaded.module("b/prompt.py").Known is loaded.module("known.py").Known


def test_a_file_called_as_a_loaded_module_does_not_take_its_place(tmp_path: Path) -> None:
    loaded = code_folder(tmp_path, tools__json="def add(): ...\n", tools__calendar="1 / 0\n")
    known = sys.modules["json"], calendar

    assert loaded.module("tools/json.py").add
    with pytest.raises(StepError, match="ZeroDivisionError"):
        loaded.module("tools/calendar.py")

    assert (sys.modules["json"], sys.modules["calendar"]) == known


def test_modules_of_a_configuration_without_diskurs_are_apart(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "words.py").write_text("def who():\n    return 'plain'\n\n\ndef again():\n    return who()\n")
    folder = str(tmp_path / "plain")
    loaded = code_folder(tmp_path / "desk", a__prompt="import words\n", a__words="", tools__words="")

    assert functions.load("words:who", folder)() == "plain"
    assert loaded.module("a/prompt.py").words.__file__ == str(tmp_path / "desk" / "a" / "words.py")
    assert loaded.module("tools/words.py")
    assert functions.load("words:again", folder)() == "plain"


def test_folders_without_init_are_apart(tmp_path: Path) -> None:
    one = code_folder(tmp_path / "one", a__prompt="from lib import words\n", lib__words="NAME = 'one'\n")
    two = code_folder(tmp_path / "two", a__prompt="from lib import words\n", lib__words="NAME = 'two'\n")

    assert one.module("a/prompt.py").words.NAME == "one"
    assert two.module("a/prompt.py").words.NAME == "two"
    assert "lib" not in sys.modules


def test_what_is_installed_in_the_folder_stays_loaded(tmp_path: Path) -> None:
    package = "venv/lib/site-packages"
    loaded = code_folder(
        tmp_path,
        **{f"{package}/installed_in_folder": ""},
        a__prompt=f"import sys\nsys.path.append({str(tmp_path / package)!r})\nimport installed_in_folder\n",
    )

    loaded.module("a/prompt.py")

    assert sys.modules.pop("installed_in_folder")
    sys.path.remove(str(tmp_path / package))


def test_a_folder_called_diskurs_is_not_taken_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diskurs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    code_text.is_installed.cache_clear()

    assert code_folder(tmp_path / "desk", a__prompt="from diskurs import tool\n").module("a/prompt.py").tool


def test_custom_modules_are_imported_by_name(tmp_path: Path) -> None:
    loaded = code_folder(tmp_path, lib__sums="def add(a, b):\n    return a + b\n", a__prompt="import sums\n")
    module = loaded.module("a/prompt.py", {"sums": "lib/sums.py"})
    assert module.sums is loaded.module("lib/sums.py")


def test_annotations_of_classes_are_readable_afterwards(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom diskurs import InputField, PromptArgument\n"
    loaded = code_folder(
        tmp_path, a__prompt=f"{text}@dataclass\nclass Mine(PromptArgument):\n    topic: InputField[str] = ''\n"
    )
    mine = loaded.load(CodeReference(file="a/prompt.py", name="Mine"))
    assert fields.accesses(mine) == {"topic": "input"}


def test_annotations_of_classes_that_neighbours_import_are_readable_afterwards(tmp_path: Path) -> None:
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    loaded = code_folder(
        tmp_path,
        common=f"{head}from diskurs import InputField, PromptArgument\n@dataclass\nclass Base(PromptArgument):\n    a: InputField[str]\n",
        a__prompt=f"{head}from typing import Optional\nimport common\n@dataclass\nclass Own(common.Base):\n    b: Optional[str] = None\n",
        a__rules="import prompt\n",
    )
    loaded.module("a/rules.py")

    assert fields.accesses(loaded.load(CodeReference(file="a/prompt.py", name="Own"))) == {"a": "input", "b": "plain"}


def test_what_cannot_be_imported_is_told(tmp_path: Path) -> None:
    loaded = code_folder(tmp_path, broken="1 / 0\n", leaving="import sys\nsys.exit(3)\n", fine="x = 1\n")
    with pytest.raises(StepError, match=r"broken\.py cannot be imported: ZeroDivisionError"):
        loaded.module("broken.py")
    with pytest.raises(StepError, match=r"leaving\.py cannot be imported: SystemExit: 3"):
        loaded.module("leaving.py")
    with pytest.raises(StepError, match=r"fine\.py has no function or class 'y'"):
        loaded.load(CodeReference(file="fine.py", name="y"))


def test_a_refusal_is_known_whoever_wraps_it() -> None:
    try:
        try:
            raise entities.PromptValidationError("Say a topic.")
        except entities.PromptValidationError as error:
            raise StepError("prompt.py raised") from error
    except StepError as error:
        assert refusal_of(error) == "Say a topic."  # noqa: PT017  # it is what was raised that is looked at
    assert refusal_of(StepError("else")) is None


def test_models_are_told_classes_by_their_own_names(tmp_path: Path) -> None:
    loaded = code_folder(tmp_path, a__prompt="class Link: ...\n").load(CodeReference(file="a/prompt.py", name="Link"))
    assert without_modules(f"expected {loaded}, or {GenericAlias(list, (loaded,))}, got {str}") == (
        "expected <class 'Link'>, or list[Link], got <class 'str'>"
    )


def running(folder: Path) -> Any:
    """A step of a run whose configuration is in a folder."""
    return SimpleNamespace(definitions=SimpleNamespace(folder=str(folder)))


@pytest.mark.parametrize(
    "bad", ["class Topic(:\n", "import not_installed_here\n\n\nclass Topic: ...\n", "", "raise SystemExit(1)\n"]
)
def test_what_cannot_be_imported_or_found_is_refused_and_read_anew_when_it_has_changed(
    tmp_path: Path, bad: str
) -> None:
    folder = tmp_path / "desk-1.2"
    code_folder(folder, a__prompt=bad, a__words="NAME = 'a'\n")
    topic = CodeReference(file="a/prompt.py", name="Topic")

    for _ in range(2):
        with pytest.raises(ImportFailedError, match=r"a/prompt\.py") as caught:
            code_folder_of(running(folder)).load(topic)
        assert (caught.value.module, caught.value.code) == ("desk-1.2", "bad_code"), (
            "as workers announce the code of a folder"
        )
    code_folder(
        folder, a__prompt="from words import NAME\n\n\nclass Topic:\n    name = NAME\n", a__words="NAME = 'b'\n"
    )

    assert code_folder_of(running(folder)).load(topic).name == "b"
    assert code_folder_of(running(folder)) is code_folder_of(running(folder))


def test_a_function_that_may_be_missing_is_missing_only_where_the_classes_beside_it_are_there(tmp_path: Path) -> None:
    step: Any = running(tmp_path)
    step.definitions.extension = SimpleNamespace(settings={"first_contact": "a", "agents": {}})
    code_folder(tmp_path, prompt="class Topic: ...\n")
    assert optional(step, "prompt.py", "finalize", is_named=False, beside=["Topic"]) is None
    with pytest.raises(ImportFailedError, match="has no function 'finalize'"):
        optional(step, "prompt.py", "finalize", is_named=True, beside=["Topic"])

    with pytest.raises(ImportFailedError, match="has no function or class 'Sale'"):
        optional(step, "prompt.py", "finalize", is_named=False, beside=["Topic", "Sale"])
    code_folder(tmp_path, prompt="class Topic: ...\n\n\nclass Sale: ...\n\n\ndef finalize(): ...\n")

    assert optional(step, "prompt.py", "finalize", is_named=False, beside=["Topic", "Sale"])


def test_a_folder_that_is_not_here_is_refused_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_CONFIG", raising=False)
    with pytest.raises(ImportFailedError, match="is not on this worker: give it the folder, or CANTATA_CONFIG"):
        code_folder_of(running(tmp_path / "desk"))

    code_folder(tmp_path / "desk", prompt="class Topic: ...\n")

    assert code_folder_of(running(tmp_path / "desk")).module("prompt.py").Topic


def test_a_tool_of_a_configuration_in_the_same_folder_does_not_unload_the_code(tmp_path: Path) -> None:
    code_folder(tmp_path, a__prompt="class Topic: ...\n", same_folder_tool="def call(): ...\n")
    functions.load("same_folder_tool:call", str(tmp_path))
    module = code_folder_of(running(tmp_path)).module("a/prompt.py")

    functions.unload_folder()

    assert sys.modules[module.__name__] is module, "whoever reads the annotations of its classes finds it there"
