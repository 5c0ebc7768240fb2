"""Imports of users' functions in a process that is thrown away: their modules may open connections when they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cantata.config.user_code.function_names import IN_WORKER
from cantata.flows.definitions import Definitions, Tool
from cantata.values import JsonValue, ToolSchema

IMPORT_TIMEOUT_S = 60.0
_BEGUN = "begun"  # in place of an error, until there is an answer
_IMPORT = """
import functools, importlib, importlib.metadata, inspect, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the output of modules must not mix with the answers
task = json.load(sys.stdin)
folder, own = task["folder"], os.getpid()
sys.argv[:] = ["cantata-worker"]  # as in a worker: modules may read it
sys.path.insert(0, folder)
place_of = importlib.import_module("cantata.config.user_code.built_ins").place_of
worker_part = importlib.import_module("cantata.operation.worker_parts").worker_part
fault_of = importlib.import_module("cantata.config.user_code.modules").import_fault
ours = importlib.import_module("cantata.errors").CantataError
def answer(*fields):
    answers.write(json.dumps(fields) + "\\n")
    answers.flush()

def parameters_of(called):
    try:
        parameters = inspect.signature(called.run).parameters.values()
    except (TypeError, ValueError):
        return None
    is_open = not called.typing or any(each.kind is each.VAR_KEYWORD for each in parameters)
    return None if is_open else [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]

if os.environ.get("CANTATA_APP"):
    answer("application", "begun")
    try:
        registered = importlib.import_module("cantata.engine.dispatch.user_app").activate().tasks
    except ours as error:
        answer("application", "; ".join(each.message for each in error.faults))
        os._exit(0)
    except ImportError as error:
        answer("application", f"it needs Celery here: {error}")
        os._exit(0)
    answer("application", None)
    for name, called in registered.items() if task["describes_tasks"] else ():
        if not name.startswith("celery."):
            answer("task", name, parameters_of(called), bool(called.acks_late))

def load(module, function):
    found = importlib.import_module(module)
    if function and not callable(getattr(found, function, None)):
        raise ours(f"it has no function {function!r}")

def imports():
    for name in task["names"]:
        module, _, function = place_of(name).partition(":")
        yield name, functools.partial(load, module, function)
    for name, (called, *arguments) in task["calls"].items():
        module, _, function = called.partition(":")
        yield name, functools.partial(getattr(importlib.import_module(module), function), *arguments)
    for name, arguments in task["scripts"].items():
        yield name, functools.partial(worker_part("inline_scripts").loaded, *arguments)
    if task["extension"]:
        kind = task["extension"]["kind"].partition(".")[0]
        for entry in importlib.metadata.entry_points(group="cantata.code_imports", name=kind):
            yield from entry.load()(folder, task["extension"]["settings"])

for name, imported in imports():
    answer("import", name, "begun")
    try:
        imported()
        fault = None
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, ours) else error
        fault = " ".join((fault_of(cause) if cause else str(error)).split())
    if os.getpid() != own:
        os._exit(0)  # a child that a module started and that went on here
    answer("import", name, fault)
answer("imported")
if task["tools"]:
    described = worker_part("tool_schemas").described
    for name, tool in task["tools"].items():
        answer("schema", name, *described(name, tool))
os._exit(0)  # threads and exit handlers of modules keep nobody waiting
"""


@dataclass(frozen=True)
class ImportTrial:
    """The results of imports in a process of their own."""

    failures: Mapping[str, str | None]
    """Module, function, script or file → why a worker cannot import it, None if it can."""
    schemas: Mapping[str, ToolSchema]
    """Tool → its schema, for models."""
    undescribed: Mapping[str, str]
    """Tool → why its function has no schema."""
    unanswered: str | None = None
    """Of `failures`, the one whose import ended its process or took too long; what follows it was not tried."""
    tasks: Mapping[str, RegisteredTask] = field(default_factory=dict)
    """The tasks of the user's application by their names, if they were asked for."""
    application: str | None = None
    """Why the user's application cannot be imported; then nothing else was tried."""


class RegisteredTask(NamedTuple):
    """A task of the user's application."""

    parameters: Sequence[str] | None
    """The names of its parameters; None if it takes any, or is not checked by Celery."""
    acks_late: bool


def failures_of(folder: str, names: Sequence[str], foreign: Definitions | None = None) -> Mapping[str, str | None]:
    """Return each of these modules or functions (`module:name`) → why a worker cannot import it, None if it can.

    Of definitions that a further format was read as, their scripts (`file:name`) and what the format's own steps import are among them.
    One without an answer ended the process, or took longer than IMPORT_TIMEOUT_S; those after it are left out.
    """
    return tried(folder, names, {}, foreign).failures


def tried(
    folder: str,
    names: Sequence[str],
    tools: Mapping[str, Tool],
    foreign: Definitions | None = None,
    *,
    calls: Mapping[str, Sequence[JsonValue]] = {},
    describes_tasks: bool = False,
) -> ImportTrial:
    """Import modules or functions as `failures_of`; then read the schemas of these tools, of those functions that can be imported.

    Args:
        calls: Further imports by their names: a function of ours, `module:name`, that imports or raises, and its arguments.
        describes_tasks: Describe the tasks of the user's application too.
    """
    extension = foreign.extension if foreign else None
    scripts = _arguments_of_scripts(foreign) if foreign else {}
    if not (names or calls or scripts or extension or describes_tasks):
        return ImportTrial({}, {}, {})
    task = {
        "folder": folder, "names": names, "calls": calls, "scripts": scripts, "extension": extension and extension.model_dump(mode="json"),
        "describes_tasks": describes_tasks,
        "tools": {name: tool.model_dump_json(exclude_defaults=True) for name, tool in tools.items()},
    }  # fmt: skip
    with tempfile.TemporaryFile() as file:  # not a pipe: processes that modules leave behind would keep it open
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _IMPORT],
                input=json.dumps(task).encode(),
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
        answers = [
            json.loads(line) for line in file if line.endswith(b"\n")
        ]  # one that was stopped may have begun a line
    application = next((each[1] for each in reversed(answers) if each[0] == "application"), None)
    if application == _BEGUN:
        application = no_answer.replace("imports it", f"imports {os.environ.get('CANTATA_APP')!r}", 1)
        application = application.replace("importing it", f"importing {os.environ.get('CANTATA_APP')!r}", 1)
    no_answer = application or no_answer
    failures: dict[str, str | None] = {
        name: fault for kind, name, fault in (each for each in answers if each[0] == "import")
    }
    described = {
        name: (schema, fault) for kind, name, schema, fault in (each for each in answers if each[0] == "schema")
    }
    unanswered = None
    if ["imported"] not in answers:
        under_way = (name for name, fault in failures.items() if fault == _BEGUN)
        unanswered = next(under_way, None) or next((name for name in names if name not in failures), folder)
    return ImportTrial(
        {**failures, unanswered: no_answer} if unanswered else failures,
        {name: ToolSchema.model_validate(schema) for name, (schema, _) in described.items() if schema},
        {name: fault for name, (_, fault) in described.items() if fault},
        unanswered,
        {each[1]: RegisteredTask(*each[2:]) for each in answers if each[0] == "task"},
        application,
    )


def _arguments_of_scripts(definitions: Definitions) -> dict[str, list[JsonValue]]:
    """Return the scripts of definitions, each with the arguments of `inline_scripts.loaded`."""
    scripts = (
        tool.script for section in (definitions.tools, definitions.skills) for tool in section.values() if tool.script
    )
    return {f"{each.file}:{each.function}": [each.model_dump(), definitions.folder] for each in scripts}
