"""Imports of users' functions in a process that is thrown away: their modules may open connections when they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cantata.config.user_code.function_names import IN_WORKER
from cantata.models.definitions import Tool
from cantata.models.values import ToolSchema

IMPORT_TIMEOUT_S = 60.0
_IMPORT = """
import importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the output of modules must not mix with the answer
folder, tools, *modules = sys.argv[1:]
sys.argv[:] = ["cantata-worker"]  # as in a worker: modules may read it
sys.path.insert(0, folder)
own = os.getpid()
fault_of = importlib.import_module("cantata.config.user_code.modules").import_fault
application = os.environ.get("CANTATA_APP") and importlib.import_module("cantata.dispatch.user_app")
if application:
    application.activate()
for module in modules:
    module, _, function = module.partition(":")
    try:
        found = importlib.import_module(module)
        fault = None if not function or callable(getattr(found, function, None)) else f"it has no function {function!r}"
    except BaseException as error:
        fault = " ".join(fault_of(error).split())
    if os.getpid() != own:
        os._exit(0)  # a child that a module started and that went on here
    answer.write(json.dumps([f"{module}:{function}".rstrip(":"), fault]) + "\\n")
    answer.flush()
if tools != "{}":
    described = importlib.import_module("cantata.workers.tools.schemas").described
    for name, tool in json.loads(tools).items():
        answer.write(json.dumps([name, *described(name, tool)]) + "\\n")
        answer.flush()
os._exit(0)  # threads and exit handlers of modules keep nobody waiting
"""


@dataclass(frozen=True)
class ImportTrial:
    """The results of imports in a process of their own."""

    failures: Mapping[str, str | None]
    """Module or function → why a worker cannot import it, None if it can."""
    schemas: Mapping[str, ToolSchema]
    """Tool → its schema, for models."""
    undescribed: Mapping[str, str]
    """Tool → why its function has no schema."""


def failures_of(folder: str, names: Sequence[str]) -> Mapping[str, str | None]:
    """Return each of these modules or functions (`module:name`) → why a worker cannot import it, None if it can.

    One without an answer ended the process, or took longer than IMPORT_TIMEOUT_S; those after it are left out.
    """
    return tried(folder, names, {}).failures


def tried(folder: str, names: Sequence[str], tools: Mapping[str, Tool]) -> ImportTrial:
    """Import modules or functions as `failures_of`; then read the schemas of these tools, of those functions that can be imported."""
    if not names:
        return ImportTrial({}, {}, {})
    texts = {name: tool.model_dump_json(exclude_defaults=True) for name, tool in tools.items()}
    with tempfile.TemporaryFile() as file:  # not a pipe: processes that modules leave behind would keep it open
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _IMPORT, folder, json.dumps(texts), *names],
                stdout=file,
                stderr=subprocess.DEVNULL,
                timeout=IMPORT_TIMEOUT_S,
                env={**os.environ, IN_WORKER: "1"},
                check=False,
            )
            no_answer = f"the process that imports it ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            no_answer = f"importing it takes more than {IMPORT_TIMEOUT_S:g} s"
        file.seek(0)
        answers = [json.loads(line) for line in file]
    failures: dict[str, str | None] = dict(answers[: len(names)])
    described = {name: (schema, fault) for name, schema, fault in answers[len(names) :]}
    first = next((name for name in names if name not in failures), None)
    return ImportTrial(
        {**failures, first: no_answer} if first else failures,
        {name: ToolSchema.model_validate(schema) for name, (schema, _) in described.items() if schema},
        {name: fault for name, (_, fault) in described.items() if fault},
    )
