"""Reads what `@tool` says of functions, from the text of their modules."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import did_you_mean, faults_of
from cantata.config.source_map import KeyPath, find, value_at
from cantata.config.user_code.function_source import SourceDefinition, bindings, definition_of
from cantata.errors import Fault
from cantata.models.definitions import Tool
from cantata.models.values import JsonValue

SETTINGS = ("name", "description", "queue", "timeout_s", "retries", "cheap", "at_most_once", "hidden")
"""What a decorator may say; all but the name are options of a tool in a configuration."""

_OURS = ("cantata.tool", "cantata.config.user_code.tool_decorator.tool")
_GIVEN_BY_US = "context"
_SECTIONS = ("tools", "skills")


def check_settings(settings: Mapping[str, JsonValue]) -> list[str]:
    """What is wrong with the settings that a decorator gives."""
    unknown = [f"unknown setting {key!r}{did_you_mean(key, SETTINGS)}" for key in settings if key not in SETTINGS]
    name = settings.get("name", "a name")
    if not isinstance(name, str) or not name.strip():
        unknown.append("name: expected a text that is not empty")
    document = Document({key: value for key, value in settings.items() if key in SETTINGS and key != "name"})
    try:
        Tool.model_validate({"function": "module:name", **cast("dict[str, JsonValue]", document.data)})
    except ValidationError as error:
        return [*unknown, *map(str, faults_of(error, document, Tool))]
    return unknown


def read_decorators(document: Document, *, folder: Path | None) -> tuple[Document, list[Fault]]:
    """The document with what decorators say where it says nothing, and a fault for each decorator that cannot be used.

    What a function hides from models, a configuration may add to but not take from.
    """
    data, faults = document.data, []
    for path, entry, definition in _functions(document, folder):
        settings, wrong = _settings(definition, said=entry)
        faults += [document.fault((*path, "function"), message) for message in wrong]
        if not wrong:
            data = _put(data, path, _merged(entry, settings))
    return dataclasses.replace(document, data=data), faults


def check_parameters(document: Document, folder: Path | None) -> Iterator[Fault]:
    """A fault for each hidden parameter that is none, or that nothing gives."""
    for path, entry, definition in _functions(document, folder):
        if not isinstance(definition.node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        known, needed, takes_any = _parameters(definition.node.args)
        values, hidden = (_names(entry, key) for key in ("values", "hidden"))
        for option, names in (("values", values), ("hidden", hidden)):
            for name in () if takes_any else [name for name in names if name not in known]:
                message = f"{name!r} is no parameter of {definition.node.name!r}{did_you_mean(name, known)}"
                yield document.fault((*path, option) if option in entry else path, message)
        for name in hidden:
            if name in needed and name not in values and name != _GIVEN_BY_US:
                yield document.fault(path, f"the hidden parameter {name!r} has no default; give it under 'values'")


def _functions(document: Document, folder: Path | None) -> Iterator[tuple[KeyPath, dict[str, JsonValue], SourceDefinition]]:
    """The entries of functions whose text is found."""
    for section in _SECTIONS:
        for path, entry in find(document.data, f"{section}.*"):
            function = value_at(entry, "function")
            if not isinstance(entry, dict) or not isinstance(function, str) or not isinstance(path[1], str):
                continue
            definition = definition_of(function, folder=folder)
            if definition is not None:
                yield path, entry, definition


def _settings(definition: SourceDefinition, *, said: Collection[str]) -> tuple[dict[str, JsonValue], list[str]]:
    """What the decorator says that is not `said` already, and what is wrong with it."""
    call = _call(definition)
    if call is None:
        return {}, []
    settings: dict[str, JsonValue] = {}
    wrong = []
    for keyword in call.keywords:
        if keyword.arg in said and keyword.arg != "hidden":
            continue
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            setting = repr(keyword.arg) if keyword.arg else f"'**{ast.unparse(keyword.value)}'"
            wrong.append(f"{setting} is no literal, and modules are not imported to find out what it is; write it in the configuration")
            continue
        if value is not None:
            settings[str(keyword.arg)] = list(value) if isinstance(value, tuple) else value
    wrong += check_settings(settings)
    return settings, [f"@tool in {definition.file.name} line {call.lineno}: {message}" for message in wrong]


def _call(definition: SourceDefinition) -> ast.Call | None:
    """The call of our decorator, where it is written with settings."""
    makers: list[ast.expr] = getattr(definition.node, "decorator_list", [])
    if isinstance(definition.node, ast.Assign) and isinstance(definition.node.value, ast.Call):
        makers = [definition.node.value.func]  # name = tool(...)(function)
    origins = dict(_origins(definition.tree))
    for maker in makers:
        if isinstance(maker, ast.Call):
            head, dot, rest = ast.unparse(maker.func).partition(".")
            if f"{origins.get(head)}{dot}{rest}" in _OURS:
                return maker
    return None


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The imported names, each with what it is the name of."""
    for _, node in bindings(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)


def _parameters(arguments: ast.arguments) -> tuple[list[str], list[str], bool]:
    """The names of the parameters, those without a default, and whether there may be any others."""
    ordered = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    named = {each.arg: default for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    needed = ordered[: len(ordered) - len(arguments.defaults)] + [name for name, default in named.items() if default is None]
    return [*ordered, *named], needed, arguments.kwarg is not None


def _names(entry: Mapping[str, JsonValue], key: str) -> list[str]:
    """What an option names; nothing if it is no list or mapping of names, which the model tells."""
    value = entry.get(key)
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []


def _merged(entry: Mapping[str, JsonValue], settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    hidden: list[JsonValue] = list(dict.fromkeys([*_names(settings, "hidden"), *_names(entry, "hidden")]))
    defaults = {key: value for key, value in settings.items() if key != "name"}
    return {**defaults, **entry, **({"hidden": hidden} if hidden and isinstance(entry.get("hidden", []), list) else {})}


def _put(data: JsonValue, path: KeyPath, entry: JsonValue) -> JsonValue:
    """A copy of the data with the entry at `section.name`."""
    section, name = map(str, path)
    entries = value_at(data, section)
    assert isinstance(data, dict)
    assert isinstance(entries, dict)
    return {**data, section: {**entries, name: entry}}
