"""What a developer's machine may have set changes no result of the suite."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.acceptance.test_packaging import NEW_UV, Machine
from tests.unit.test_environment import HOSTILE

TOP = Path(__file__).parents[2]
TEST = f"import os\n\ndef test_nothing_is_left() -> None:\n    assert {set(HOSTILE)} & set(os.environ) == set()\n"


def test_a_hostile_environment_changes_no_result(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(
        "uv",
        NEW_UV.replace(
            """'case $1 in -V) echo Python 3.11.7 ;; -c) ;; *) echo "$@" ;; esac'""", f"'exec {sys.executable} \"$@\"'"
        ),
    )
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "examples.py", "warm.py"):
        shutil.copy(TOP / "tests" / name, tmp_path / "tests")
    (tmp_path / "tests" / "test_it.py").write_text(TEST)
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in HOSTILE.items()))

    ran = machine.run("test", "--numprocesses", "0", **HOSTILE, PYTHONPATH=str(tmp_path))

    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
