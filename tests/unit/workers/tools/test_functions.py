"""Functions are found in the configuration's folder, wherever that is on this machine, and called as who asks would have it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cantata.errors import ImportFailedError, StepError
from cantata.flows.definitions import Definitions, Tool
from cantata.flows.graph import Spec
from cantata.ledger.records import Begun
from cantata.values import JsonValue
from cantata_workers.process import user_code
from cantata_workers.process.config_folder import local_folder
from cantata_workers.process.process import Process
from cantata_workers.process.step_context import StepContext
from cantata_workers.tools import functions
from cantata_workers.tools.functions import load, tool_call

BOOKING = """
from datetime import date
from pydantic import BaseModel

class Booking(BaseModel):
    day: date
    guest: str

def book(day: date, guest: str = "nobody"):
    return Booking(day=day, guest=guest) if isinstance(day, date) else f"{day} {guest}"

def hoard(day):
    kept = [bytes(1000)]
    raise MemoryError(kept)

def free(**given):
    return given
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "booking_tools.py").write_text(BOOKING)
    return str(tmp_path)


def called(
    folder: str, name: str, given: dict[str, JsonValue], *, by_model: bool = False, **settings: Any
) -> JsonValue:
    """What a step that calls the function gives."""
    params: dict[str, JsonValue] = {
        "section": "tools",
        "tool": "t",
        "input": given,
        **({"asked_by": "model"} if by_model else {}),
    }
    definitions = Definitions(folder=folder, tools={"t": Tool(function=f"booking_tools:{name}", **settings)})
    process = cast(Process, SimpleNamespace(definitions=lambda run_id, digest: definitions))
    begun = Begun("run", "step", 1, "worker", Spec(kind="tool.call", params=params), None, 0, {}, "")
    return tool_call(StepContext(begun, process)).output


def test_a_model_s_arguments_and_the_answer_to_it_are_converted(folder: str) -> None:
    assert called(folder, "book", {"day": "2026-01-02"}, by_model=True, values={"guest": "ann"}) == {
        "day": "2026-01-02",
        "guest": "ann",
    }
    with pytest.raises(StepError, match="'day': input should be a valid date"):
        called(folder, "book", {"day": "soon"}, by_model=True)
    with pytest.raises(StepError, match="unknown argument 'guest'"):
        called(folder, "book", {"day": "2026-01-02", "guest": "eve"}, by_model=True, values={"guest": "ann"})


def test_a_node_s_arguments_are_given_as_they_are(folder: str) -> None:
    assert called(folder, "book", {"day": "2026-01-02"}, values={"guest": "ann"}) == "2026-01-02 ann"
    with pytest.raises(StepError, match="argument 'guest' is given by the configuration's 'values'; leave it out"):
        called(folder, "free", {"guest": "eve"}, values={"guest": "ann"})


def test_a_function_without_memory_fails_its_step(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_TOOL_MEMORY_MB", "500")

    with pytest.raises(
        StepError, match="booking_tools:hoard ran out of memory; the limit of its process is 500 MB"
    ) as caught:
        called(folder, "hoard", {"day": 1})

    assert (caught.value.code, caught.value.retryable) == ("tool_error", True)


def test_a_folder_that_is_not_here_is_where_the_worker_s_own_configuration_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path / "desk.yaml"))

    assert local_folder("/nowhere/on/this/machine") == str(tmp_path)
    assert local_folder(str(tmp_path.parent)) == str(tmp_path.parent)
    assert local_folder(None) is None


def test_functions_of_two_folders_with_modules_of_one_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared_name.py").write_text(f"def who():\n    return {name!r}\n")

    assert load("shared_name:who", str(tmp_path / "one"))() == "one"
    assert load("shared_name:who", str(tmp_path / "two"))() == "two"
    assert load("shared_name:who", str(tmp_path / "one"))() == "one"


def test_modules_that_the_program_around_us_imported_itself_stay_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"only_in_{folder}.py").write_text(f"def call(): return {value}\n")
        (tmp_path / folder / "in_both.py").write_text(f"def call(): return {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    own = [importlib.import_module(name).call for name in ("only_in_a", "in_both")]

    assert load("only_in_a:call", str(tmp_path / "a")) is own[0]
    assert load("in_both:call", str(tmp_path / "a")) is own[1]
    assert load("only_in_b:call", str(tmp_path / "b"))() == 2
    assert load("in_both:call", str(tmp_path / "b"))() == 2

    assert sys.modules["only_in_a"].call is own[0]


def test_folders_without_init_of_one_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "bare").mkdir(parents=True)
        (tmp_path / name / "bare" / "common.py").write_text(f"NAME = {name!r}\n")
        (tmp_path / name / "reads_bare.py").write_text(
            "from bare import common\n\n\ndef who():\n    return common.NAME\n"
        )

    assert load("reads_bare:who", str(tmp_path / "one"))() == "one"
    assert load("reads_bare:who", str(tmp_path / "two"))() == "two"


def test_folders_within_folders_without_init_are_distinguished(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "lib" / "deep").mkdir(parents=True)
        (tmp_path / name / "lib" / "deep" / "own.py").write_text(f"def who():\n    return {name!r}\n")

    found = [load("lib.deep.own:who", str(tmp_path / name))() for name in ("one", "two", "one")]

    assert found == ["one", "two", "one"]


def test_a_module_that_exits_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")

    with pytest.raises(StepError, match="module 'leaving' cannot be imported: SystemExit: 3"):
        load("leaving:who", str(tmp_path))


def test_a_module_in_a_folder_without_init_is_found(tmp_path: Path) -> None:
    (tmp_path / "bare_folder").mkdir()
    (tmp_path / "bare_folder" / "who.py").write_text("def who():\n    return 'bare'\n")

    assert load("bare_folder.who:who", str(tmp_path))() == "bare"


@pytest.mark.parametrize(
    ("name", "expected", "lacks_name"),
    [
        ("no_such_module_here:f", "module 'no_such_module_here' cannot be imported", False),
        ("json:no_such", "module 'json' has no function 'no_such'", True),
    ],
)
def test_missing_modules_and_functions_are_reported(name: str, expected: str, lacks_name: bool) -> None:
    with pytest.raises(ImportFailedError, match=expected) as caught:
        load(name, None)
    assert caught.value.lacks_name is lacks_name, "so nobody with the same version has it"


def test_a_failed_import_is_tried_again_when_a_file_has_changed_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "starts_threads.py"
    module.write_text(
        f"with open({str(tmp_path / 'tries')!r}, 'a') as file: file.write('x')\nimport not_there_either\n"
    )
    now = [0.0]
    monkeypatch.setattr(functions, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def tried() -> int:
        with pytest.raises(
            ImportFailedError, match=r"No module named 'not_there_either' \(starts_threads\.py, line 2\)"
        ):
            load("starts_threads:call", str(tmp_path))
        return len((tmp_path / "tries").read_text())

    assert [tried(), tried(), tried()] == [1, 1, 1], "however many steps wait for it"
    now[0] += functions.AGAIN_S
    assert [tried(), tried()] == [2, 2], "the package may be installed meanwhile"
    module.write_text("def call(): ...\n")

    assert load("starts_threads:call", str(tmp_path))() is None


def test_a_module_that_imports_a_corrected_one_is_imported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [user_code.Finder(), *sys.meta_path])  # as in a worker
    shared = tmp_path / "shared_and_bad.py"
    shared.write_text("def (\n")
    (tmp_path / "uses_shared.py").write_text("from shared_and_bad import call\n")
    with pytest.raises(ImportFailedError, match="invalid syntax"):
        load("shared_and_bad:call", str(tmp_path))

    shared.write_text("def call(): return 'corrected'\n")

    assert load("uses_shared:call", str(tmp_path))() == "corrected", "though it has not failed before"
    assert not user_code._faults.get("uses_shared")
    shared.write_text("def call(): return 'another version'\n")
    assert load("shared_and_bad:call", str(tmp_path))() == "corrected", "no step sees two versions"


def test_a_module_that_ends_its_process_is_tried_in_another_one_if_a_worker_died_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "ends_processes.py"
    module.write_text(f"with open({str(tmp_path / 'tries')!r}, 'a') as file: file.write('x')\nimport os\nos._exit(3)\n")
    now = [0.0]
    monkeypatch.setattr(functions, "time", SimpleNamespace(monotonic=lambda: now[0]))
    why = "'ends_processes:call' cannot be imported: the process that imports it ended with status 3"

    with user_code.careful(True), pytest.raises(ImportFailedError, match=why) as caught:
        load("ends_processes:call", str(tmp_path))
    assert caught.value.module == "ends_processes"
    with pytest.raises(ImportFailedError, match=why):  # of a step of which no worker died
        load("ends_processes:call", str(tmp_path))
    assert (tmp_path / "tries").read_text() == "x", "however many steps wait for it"
    now[0] += functions.AGAIN_S
    with pytest.raises(ImportFailedError, match=why):
        load("ends_processes:call", str(tmp_path))
    assert (tmp_path / "tries").read_text() == "xx"
    module.write_text("def call(): ...\n")

    assert load("ends_processes:call", str(tmp_path))() is None
