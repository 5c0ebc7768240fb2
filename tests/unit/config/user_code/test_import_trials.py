"""Imports in a process that is thrown away."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cantata.config.user_code.import_trials import failures_of
from cantata.flows.definitions import Definitions, Extension


def test_each_module_and_function_has_its_answer(tmp_path: Path) -> None:
    texts = {
        "fine.py": "print('this must not mix with the answer')\ndef here(): ...\n", "broken.py": "def oops(:\n",
        "lacking.py": "import not_there\n",
        "raising.py": "raise SystemExit(3)\n", "ending.py": "import os\nos._exit(3)\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    found = failures_of(
        str(tmp_path),
        ["fine", "fine:here", "fine:gone", "broken:oops", "lacking:x", "raising:x", "ending:x", "fine:here_after_it"],
    )

    assert {name: found[name] for name in ("fine", "fine:here")} == {"fine": None, "fine:here": None}
    assert found["fine:gone"] == "it has no function 'gone'"
    assert str(found["broken:oops"]).startswith("SyntaxError")
    assert found["lacking:x"] == "ModuleNotFoundError: No module named 'not_there' (lacking.py, line 1)"
    assert found["raising:x"] == "SystemExit: 3 (raising.py, line 1)"
    assert found["ending:x"] == "the process that imports it ended with status 3"
    assert "fine:here_after_it" not in found
    assert not {"fine", "broken", "lacking"} & sys.modules.keys()


def test_nothing_is_imported_for_nothing(tmp_path: Path) -> None:
    without_code = Extension(kind="nobody.turn", agents=["a"], first_agent="a")

    assert failures_of(str(tmp_path), []) == {}
    assert failures_of(str(tmp_path), [], Definitions(extension=without_code)) == {}


def test_what_modules_leave_behind_keeps_nobody_waiting_and_answers_nothing(tmp_path: Path) -> None:
    texts = {
        "waits.py": "import threading, time\nthreading.Thread(target=time.sleep, args=(40,)).start()\ndef here(): ...\n",
        "starts.py": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(40)'])\ndef here(): ...\n",
        "forks.py": "import os\nos.fork()\ndef here(): ...\n",
        "leaves.py": f"import atexit, pathlib\natexit.register(pathlib.Path({str(tmp_path / 'left')!r}).touch)\ndef here(): ...\n",
        "parses.py": "import argparse\nargparse.ArgumentParser().parse_args()\ndef here(): ...\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    names = [f"{Path(name).stem}:here" for name in texts]
    since = time.monotonic()

    assert failures_of(str(tmp_path), names) == dict.fromkeys(names)

    assert time.monotonic() - since < 30
    assert not (tmp_path / "left").exists()
