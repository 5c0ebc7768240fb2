"""Functions are found in the configuration's folder, wherever that is on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import StepError
from workers.tools import folder_here, load


def test_a_folder_that_is_not_here_is_where_the_worker_s_own_configuration_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path / "desk.yaml"))

    folder_here.cache_clear()
    assert folder_here("/nowhere/on/this/machine") == str(tmp_path)
    assert folder_here(str(tmp_path.parent)) == str(tmp_path.parent)
    assert folder_here(None) is None


def test_functions_of_two_folders_with_modules_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared_name.py").write_text(f"def who():\n    return {name!r}\n")

    assert load("shared_name:who", str(tmp_path / "one"))() == "one"
    assert load("shared_name:who", str(tmp_path / "two"))() == "two"
    assert load("shared_name:who", str(tmp_path / "one"))() == "one"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_here:f", "module 'no_such_module_here' cannot be imported"),
        ("json:no_such", "module 'json' has no function 'no_such'"),
    ],
)
def test_what_is_not_there_is_told(name: str, said: str) -> None:
    with pytest.raises(StepError, match=said):
        load(name, None)
