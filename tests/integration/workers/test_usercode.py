"""The user code of a process; each test has a process of its own, since what one reads it never reads again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BEFORE = """
import json, os, sys
from pathlib import Path
from cantata.errors import MustWait
from cantata_workers.process import user_code
folder = Path(sys.argv[1])
told = []
user_code.serve(told.append, is_replaced=True)
sys.path.insert(0, str(folder))
def save(name, text, mtime=None):
    new = folder / "new"
    new.write_text(text)
    if mtime:
        os.utime(new, (mtime, mtime))
    new.replace(folder / name)
"""


def in_a_process(folder: Path, code: str) -> Any:
    """What a new process with the folder on its path tells."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + code, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_function_that_imports_late_gets_what_was_there_when_its_module_was_read(tmp_path: Path) -> None:
    write(
        tmp_path, {"steps": "def version():\n    import helper\n    return helper.VERSION\n", "helper": "VERSION = 1\n"}
    )

    code = """
user_code.use(str(folder), "steps")
import steps
save("helper.py", "VERSION = 2")
print(json.dumps([steps.version(), *told]))
"""
    version, *told = in_a_process(tmp_path, code)

    assert version == 1
    assert [line.split("\t")[1] for line in told if line.startswith("file\t")] == [
        f"{tmp_path}/steps.py",
        f"{tmp_path}/helper.py",
    ]
    assert [line.split("\t")[2] for line in told if line.startswith("code\t")] == ["steps"]


def test_a_compiled_file_of_another_text_with_the_same_size_and_second_does_not_count(tmp_path: Path) -> None:
    code = """
import importlib
save("steps.py", "VERSION = 1\\n", mtime=1_600_000_000.2)
import py_compile
compiled = py_compile.compile(str(folder / "steps.py"))
os.utime(compiled, (1_600_000_000.3, 1_600_000_000.3))
save("steps.py", "VERSION = 2\\n", mtime=1_600_000_000.6)
user_code.use(str(folder), "steps")
import steps
print(json.dumps(steps.VERSION))
"""
    assert in_a_process(tmp_path, code) == 2


def test_a_digest_is_of_all_that_is_imported_and_the_same_wherever_it_lies(tmp_path: Path) -> None:
    code = """
with user_code.recording() as used:
    user_code.use(str(folder), "steps")
    user_code.use(str(folder), "json")
print(json.dumps(sorted(used)))
"""
    texts = {"steps": "import helper\n", "helper": "x = 1\n"}
    one = in_a_process(write(tmp_path / "one", texts), code)
    same = in_a_process(write(tmp_path / "other", {**texts, "unused": "y = 1\n"}), code)
    edited = in_a_process(write(tmp_path / "edited", {**texts, "helper": "x = 2\n"}), code)

    assert one == same != edited
    assert [entry.partition("@")[0] for entry in one] == ["steps"]


def test_a_module_whose_part_was_read_in_an_older_version_waits_for_a_new_process(tmp_path: Path) -> None:
    write(tmp_path, {"one": "import shared\n", "two": "import shared\n", "shared": "x = 1\n"})

    code = """
user_code.use(str(folder), "one")
save("shared.py", "x = 2")
try:
    user_code.use(str(folder), "two")
    print(json.dumps("mixed"))
except MustWait as wait:
    print(json.dumps(str(wait)))
"""
    assert in_a_process(tmp_path, code) == "shared.py has changed: new processes will serve it in a moment"


def test_a_module_that_no_text_names_is_read_when_it_is_imported(tmp_path: Path) -> None:
    write(tmp_path, {"steps": "def late(name):\n    return __import__(name).x\n", "other": "x = 1\n"})

    code = """
user_code.use(str(folder), "steps")
import steps
before = len(told)
print(json.dumps([steps.late("other"), told[before:]]))
"""
    value, told = in_a_process(tmp_path, code)

    assert value == 1
    assert told[0].startswith(f"file\t{tmp_path}/other.py\t")


def test_a_module_that_cannot_be_imported_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, {"broken": "X = 1\ndef f(:\n", "lost": "import helper\n", "helper": "X = 1\nimport not_there\n"})

    code = """
from cantata_workers.tools import functions
user_code.use(str(folder), "broken")
for _ in range(2):
    try:
        functions.load("lost:f", str(folder))
    except Exception:
        pass
save("default.yaml", "tools: {t: {function: 'syntax:f'}}")
save("syntax.py", "def f(:\\n")
os.environ["CANTATA_CONFIG"] = str(folder / "default.yaml")
user_code.preload()
print(json.dumps([line.split("\\t")[2:] for line in told if line.startswith("fault")]))
"""
    faults = in_a_process(tmp_path, code)

    assert faults == [
        ["broken", "broken.py line 2: invalid syntax"],
        ["lost", "helper.py line 2: ModuleNotFoundError: No module named 'not_there'"],
        ["syntax", "syntax.py line 1: invalid syntax"],
    ]
