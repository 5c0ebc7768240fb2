"""Imports the modules of a configuration's functions, in a process of its own, to learn whether workers can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cantata.config.documents import Document
from cantata.config.native import functions_in
from cantata.config.user_code.function_names import IN_WORKER
from cantata.errors import Fault

PATIENCE_S = 60.0
_IMPORT = """
import importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the modules print is no answer
folder, *modules = sys.argv[1:]
sys.path.insert(0, folder)
for module in modules:
    try:
        importlib.import_module(module)
        said = None
    except BaseException as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
    answer.write(json.dumps([module, said]) + "\\n")
    answer.flush()
"""


def import_faults(document: Document, folder: Path) -> Iterator[Fault]:
    """A fault for each function whose module is there and cannot be imported here."""
    named = list(functions_in(document))
    said = _imported(folder, sorted({function.partition(":")[0] for _, function in named}))
    for path, function in named:
        module = function.partition(":")[0]
        if said.get(module):
            yield document.fault(path, f"module {module!r} cannot be imported here: {said[module]}")


def _imported(folder: Path, modules: Sequence[str]) -> Mapping[str, str | None]:
    """Why modules cannot be imported; those that end the process, or take too long, are told by what was not answered."""
    if not modules:
        return {}
    command = [sys.executable, "-c", _IMPORT, str(folder), *modules]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE_S, env={**os.environ, IN_WORKER: "1"}, check=False
        )
        lines, silent = done.stdout, f"the process that imports it ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        lines, silent = error.stdout or b"", f"that takes more than {PATIENCE_S:g} s"
    said: dict[str, str | None] = dict(json.loads(line) for line in lines.splitlines())
    first = next((module for module in modules if module not in said), None)
    return {**said, first: silent} if first else said
