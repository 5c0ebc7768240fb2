"""Import check: the modules of a configuration's functions, imported in a process of their own, as workers would; its tools' schemas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cantata.config import loading
from cantata.config.documents import Document
from cantata.config.native import functions_in
from cantata.config.source_map import KeyPath, find
from cantata.config.user_code.import_trials import ImportTrial, RegisteredTask, tried
from cantata.errors import ConfigError, Fault
from cantata.flows.definitions import Definitions
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue


def import_faults(document: Document, trial: ImportTrial) -> Iterator[Fault]:
    """Yield a fault for each function whose module exists but cannot be imported here; one if the user's application cannot be."""
    if trial.application:
        yield Fault(trial.application)
        return
    for path, function in functions_in(document):
        module = function.partition(":")[0]
        if fault := trial.failures.get(module):
            yield document.fault(path, f"module {module!r} cannot be imported here: {fault}")


def unimportable(config: str | None) -> list[Fault]:
    """Return the faults of functions that the configuration names and workers could not import; none if there is no configuration.

    Other faults are left to whoever reads the configuration.
    """
    path = loading.find(config)
    if path is None or not path.exists():
        return []
    document = loading.opened(path)
    if not isinstance(document, Document):
        return list(foreign_faults(document.definitions))
    named = list(functions_in(document))
    try:
        loading.load(path)
    except ConfigError as error:
        places = {document.fault(place, "").where for place, _ in named}
        if missing := [fault for fault in error.faults if fault.where in places]:
            return missing
    modules = sorted({function.partition(":")[0] for _, function in named})
    return list(import_faults(document, tried(str(path.resolve().parent), modules, {})))


def foreign_faults(definitions: Definitions) -> Iterator[Fault]:
    """Yield a fault for each function, script or file that the definitions of a further format name, and that cannot be imported here."""
    dumped = Document(definitions.model_dump(mode="json", exclude_defaults=True, by_alias=True))
    names = sorted({function for _, function in functions_in(dumped)})
    failures = tried(definitions.folder or "", names, {}, definitions).failures
    first = {
        (name.partition(":")[0], why): name for name, why in reversed([*failures.items()]) if why
    }  # not once for each name of a file
    yield from (Fault(f"{name!r} cannot be imported here: {why}") for (_, why), name in reversed([*first.items()]))


def try_imports(document: Document, folder: Path, definitions: Definitions) -> ImportTrial:
    """Import the modules of all functions, and read the schemas of those that agents have as tools, and the tasks of the application."""
    names = dict.fromkeys(each for agent in definitions.agents.values() for each in agent.tools)
    tools = {name: tool for name in names if (tool := definitions.tools.get(name)) and tool.function}
    modules = sorted({function.partition(":")[0] for _, function in functions_in(document)})
    return tried(
        str(folder), modules, tools, describes_tasks=bool(_tasks_in(document) and os.environ.get("CANTATA_APP"))
    )


def _tasks_in(document: Document) -> list[tuple[KeyPath, JsonValue]]:
    return [each for section in ("tools", "skills") for each in find(document.data, f"{section}.*.task")]


def task_faults(document: Document, trial: ImportTrial) -> Iterator[Fault]:
    """Yield a warning for each task that the application of CANTATA_APP does not have here, and a fault for each wrong argument.

    An application without any task, of a module that only makes it, is asked for none.
    """
    for path, task in _tasks_in(document) if trial.tasks else ():
        if (known := trial.tasks.get(str(task))) is None:
            near = did_you_mean(str(task), trial.tasks)
            message = f"application {os.environ['CANTATA_APP']!r} has no task {task!r} on this machine{near}"
            yield replace(document.fault(path, message), is_warning=True)  # the user's workers may have it all the same
        else:
            yield from _call_faults(document, path, str(task), known)


def _call_faults(document: Document, path: KeyPath, name: str, task: RegisteredTask) -> Iterator[Fault]:
    """Yield a fault for each argument of a chain's node that the task of its tool does not have, and a warning if it may run twice."""
    section, tool, _ = map(str, path)
    if task.acks_late and ((section, tool, "at_most_once"), True) in find(document.data, f"{section}.*.at_most_once"):
        message = (
            f"task {name!r} is acknowledged late (acks_late), so it may be executed twice: workers refuse its steps"
        )
        yield replace(document.fault((section, tool, "at_most_once"), message), is_warning=True)
    if task.parameters is None:
        return
    for node_path, node in find(document.data, "chains.*.nodes.*"):
        if not isinstance(node, dict) or (node.get("kind"), node.get("name")) != (section.removesuffix("s"), tool):
            continue
        for key_path, _ in (each for field in ("input", "input_map") for each in find(node, f"{field}.*")):
            if (key := str(key_path[-1])) not in task.parameters:
                near = did_you_mean(key, task.parameters)
                yield document.fault((*node_path, *key_path), f"task {name!r} has no parameter {key!r}{near}")
