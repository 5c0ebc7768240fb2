"""Import check: the modules of a configuration's functions, imported in a process of their own, as workers would."""

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

IMPORT_TIMEOUT_S = 60.0
_IMPORT = """
import importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the output of modules must not mix with the answer
folder, *modules = sys.argv[1:]
sys.path.insert(0, folder)
for module in modules:
    try:
        importlib.import_module(module)
        fault = None
    except BaseException as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())
    answer.write(json.dumps([module, fault]) + "\\n")
    answer.flush()
"""


def import_faults(document: Document, folder: Path) -> Iterator[Fault]:
    """Yield a fault for each function whose module exists but cannot be imported here."""
    named = list(functions_in(document))
    failures = _import_failures(folder, sorted({function.partition(":")[0] for _, function in named}))
    for path, function in named:
        module = function.partition(":")[0]
        if failures.get(module):
            yield document.fault(path, f"module {module!r} cannot be imported here: {failures[module]}")


def _import_failures(folder: Path, modules: Sequence[str]) -> Mapping[str, str | None]:
    """Return module → why it cannot be imported, None if it can. A module without an answer ended the process or took too long."""
    if not modules:
        return {}
    command = [sys.executable, "-c", _IMPORT, str(folder), *modules]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=IMPORT_TIMEOUT_S,
            env={**os.environ, IN_WORKER: "1"},
            check=False,
        )
        lines, no_answer = done.stdout, f"the process that imports it ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        lines, no_answer = error.stdout or b"", f"importing it takes more than {IMPORT_TIMEOUT_S:g} s"
    failures: dict[str, str | None] = dict(json.loads(line) for line in lines.splitlines())
    first = next((module for module in modules if module not in failures), None)
    return {**failures, first: no_answer} if first else failures
