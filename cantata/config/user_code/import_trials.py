"""Imports of users' functions in a process that is thrown away: their modules may open connections when they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
sys.path.insert(0, folder)
application = os.environ.get("CANTATA_APP") and importlib.import_module("cantata.dispatch.user_app")
if application:
    application.activate()
for module in modules:
    module, _, function = module.partition(":")
    try:
        found = importlib.import_module(module)
        fault = None if not function or callable(getattr(found, function, None)) else f"it has no function {function!r}"
    except BaseException as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())
    answer.write(json.dumps([f"{module}:{function}".rstrip(":"), fault]) + "\\n")
    answer.flush()
if tools != "{}":
    described = importlib.import_module("cantata.workers.tools.schemas").described
    for name, tool in json.loads(tools).items():
        answer.write(json.dumps([name, *described(name, tool)]) + "\\n")
        answer.flush()
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
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _IMPORT, folder, json.dumps(texts), *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=IMPORT_TIMEOUT_S,
            env={**os.environ, IN_WORKER: "1"},
            check=False,
        )
        lines, no_answer = done.stdout, f"the process that imports it ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        lines, no_answer = error.stdout or b"", f"importing it takes more than {IMPORT_TIMEOUT_S:g} s"
    answers = [json.loads(line) for line in lines.splitlines()]
    failures: dict[str, str | None] = dict(answers[: len(names)])
    described = {name: (schema, fault) for name, schema, fault in answers[len(names) :]}
    first = next((name for name in names if name not in failures), None)
    return ImportTrial(
        {**failures, first: no_answer} if first else failures,
        {name: ToolSchema.model_validate(schema) for name, (schema, _) in described.items() if schema},
        {name: fault for name, (_, fault) in described.items() if fault},
    )
