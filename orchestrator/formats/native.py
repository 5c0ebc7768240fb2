"""Reads our own configuration files into definitions."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import ConfigError, Fault
from orchestrator.formats.documents import Document
from orchestrator.formats.faults import did_you_mean, faults_of, in_order
from orchestrator.formats.functions import fault_of
from orchestrator.formats.marks import KeyPath, step
from orchestrator.models.definitions import Definitions
from orchestrator.models.values import JsonValue

_MODES = ("pipeline", "broadcast")  # that this version has
_SECTIONS = ("models", "tools", "skills", "commands", "agents", "teams", "chains")
_SKILLS = ("skills", "agents", "teams", "chains")  # what a node of kind `skill` may name
_TEXTS = ("agents.*.system", "agents.*.instructions.*", "teams.*.synthesizer.prompt")
_FUNCTIONS = ("tools.*.function", "skills.*.function")
_MODEL_NAMES = ("models.*.model", "agents.*.model", "teams.*.synthesizer.model", "defaults.model")
_REFERENCES: Mapping[str, str] = {"teams.*.agents.*": "agents", "defaults.team": "teams", "defaults.agent": "agents"}

_FILE = re.compile(r"file:\s*(\S.*)")
_TEXT_FILE = re.compile(r".+\.(md|txt|jinja2)")


def load_definitions(document: Document, *, folder: Path | None = None) -> Definitions:
    """The definitions of a configuration; a ConfigError lists all its faults.

    Functions and text files are looked for in `folder`, which the definitions keep.
    """
    data, faults = _read_texts(document, folder)
    document = dataclasses.replace(document, data=data)
    definitions = Definitions(folder=str(folder) if folder else None)
    unread = {fault.where for fault in faults}
    try:
        definitions = Definitions.model_validate(data).model_copy(update={"folder": definitions.folder})
    except ValidationError as error:
        faults += [fault for fault in faults_of(error, document, Definitions, hidden=["folder"]) if fault.where not in unread]
    faults += [fault for check in _CHECKS for fault in check(document, folder) if fault.where not in unread]
    if faults:
        raise ConfigError(in_order(faults), source=document.source)
    return definitions


# Each check reads the plain data, not the model: so it finds its faults though there are others.


def _check_folder(document: Document, folder: Path | None) -> Iterator[Fault]:
    if isinstance(document.data, dict) and "folder" in document.data:
        yield document.fault(("folder",), "unknown key 'folder'; functions are imported from the folder that the file lies in")


def _check_names(document: Document, folder: Path | None) -> Iterator[Fault]:
    for section in _SECTIONS:
        for name in _names(document, section):
            if not name.strip():
                yield document.fault((section, name), "the name is empty")


def _check_skill_names(document: Document, folder: Path | None) -> Iterator[Fault]:
    first: dict[str, str] = {}
    for section in _SKILLS:
        for name in _names(document, section):
            if name in first:
                line = document.line((first[name], name))
                other = f"{first[name]}.{name}{f' on line {line}' if line else ''}"
                yield document.fault((section, name), f"the name is taken by {other}, and a node of kind 'skill' may mean either; rename one")
            first.setdefault(name, section)


def _check_references(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern, section in _REFERENCES.items():
        names = _names(document, section)
        for path, name in _texts(document.data, pattern):
            if name not in names:
                yield document.fault(path, f"there is no {section[:-1]} {name!r}{did_you_mean(name, names)}")


def _check_modes(document: Document, folder: Path | None) -> Iterator[Fault]:
    for path, mode in _texts(document.data, "teams.*.mode"):
        if mode not in _MODES and mode in ("router", "round_robin", "conductor"):
            yield document.fault(path, f"mode {mode!r} is not available in this version; use {' or '.join(map(repr, _MODES))}")


def _check_synthesizers(document: Document, folder: Path | None) -> Iterator[Fault]:
    for path, prompt in _texts(document.data, "teams.*.synthesizer.prompt"):
        if "{agent_responses}" not in prompt:
            yield document.fault(path, "the prompt has no '{agent_responses}', so the synthesizer would not see what the agents said")


def _check_model_names(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern in _MODEL_NAMES:
        for path, name in _texts(document.data, pattern):
            if not name.strip():
                yield document.fault(path, "the model's name is empty; name one, such as 'openai/gpt-4o-mini', or leave the key out")


def _check_functions(document: Document, folder: Path | None) -> Iterator[Fault]:
    for pattern in _FUNCTIONS:
        for path, function in _texts(document.data, pattern):
            message = fault_of(function, folder=folder) if re.fullmatch(r"[\w.]+:\w+", function) else None  # else the model tells
            if message:
                yield document.fault(path, message)


_CHECKS: tuple[Callable[[Document, Path | None], Iterator[Fault]], ...] = (
    _check_folder,
    _check_names,
    _check_skill_names,
    _check_references,
    _check_modes,
    _check_synthesizers,
    _check_model_names,
    _check_functions,
)


def _read_texts(document: Document, folder: Path | None) -> tuple[JsonValue, list[Fault]]:
    """The data, with each text that is the name of a file replaced by what the file says."""
    data = copy.deepcopy(document.data)
    faults = []
    for pattern in _TEXTS:
        for path, value in list(_each(document.data, pattern.split("."))):
            try:
                text = _text_of(value, folder)
            except (OSError, ValueError) as error:
                faults.append(document.fault(path, str(error)))
                continue
            parent = data
            for part in path[:-1]:
                parent = step(parent, part)
            parent[path[-1]] = text  # type: ignore[index, call-overload] # `_each` came this way
    return data, faults


def _text_of(value: JsonValue, folder: Path | None) -> JsonValue:
    """What a text stands for: written `file: path`, that file; written as the path of a text file that is there, that too; else itself."""
    named = _FILE.fullmatch(value) if isinstance(value, str) else None
    name = named.group(1) if named else value.get("file") if isinstance(value, dict) and value.keys() == {"file"} else None
    ...


def _names(document: Document, section: str) -> list[str]:
    names = step(document.data, section)
    return list(names) if isinstance(names, dict) else []


def _texts(data: JsonValue, pattern: str) -> Iterator[tuple[KeyPath, str]]:
    """The texts whose path fits a pattern such as `agents.*.model`."""
    return ((path, value) for path, value in _each(data, pattern.split(".")) if isinstance(value, str))
