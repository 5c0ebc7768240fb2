"""Settings in `@tool` decorators, read from the text of modules."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of
from cantata.config.source_map import KeyPath, find, value_at, with_value
from cantata.config.user_code.function_source import SourceDefinition, bindings, definition_of
from cantata.errors import Fault
from cantata.flows.definitions import Tool
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue

SETTINGS = ("name", "description", "queue", "timeout_s", "retries", "cheap", "at_most_once", "pure", "hidden")
"""Settings of the decorator; all but the name are options of a tool in a configuration."""

_OURS = ("cantata.tool", "cantata.config.user_code.tool_decorator.tool")
_GIVEN_BY_US = "context"
_SECTIONS = ("tools", "skills")


def check_settings(settings: Mapping[str, JsonValue]) -> list[str]:
    """Return the faults of a decorator's settings."""
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
    """Return the document with the settings of decorators that it does not override, and a fault for each invalid decorator.

    A configuration may hide further parameters from models, but not reveal those that the decorator hides.
    """
    data, faults = document.data, []
    for path, entry, definition in _functions(document, folder):
        settings, wrong = _settings(definition, overridden=entry)
        faults += [document.fault((*path, "function"), message) for message in wrong]
        if not wrong:
            data = with_value(data, path, _merged(entry, settings))
    return dataclasses.replace(document, data=data), faults


def check_parameters(document: Document, folder: Path | None) -> Iterator[Fault]:
    """Yield a fault for each option that names an unknown parameter, and for each hidden parameter without a value."""
    for path, entry, definition in _functions(document, folder):
        if not isinstance(definition.node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        known, needed, takes_any = parameters_of(definition.node.args)
        values, hidden = (_names(entry, key) for key in ("values", "hidden"))
        for option, names in (("values", values), ("hidden", hidden)):
            for name in () if takes_any else [name for name in names if name not in known]:
                message = f"{name!r} is not a parameter of {definition.node.name!r}{did_you_mean(name, known)}"
                yield document.fault((*path, option) if option in entry else path, message)
        for name in hidden:
            if name in needed and name not in values and name != _GIVEN_BY_US:
                yield document.fault(path, f"the hidden parameter {name!r} has no default; give it under 'values'")


def _functions(
    document: Document, folder: Path | None
) -> Iterator[tuple[KeyPath, dict[str, JsonValue], SourceDefinition]]:
    """Yield the entries of functions whose source is found."""
    for section in _SECTIONS:
        for path, entry in find(document.data, f"{section}.*"):
            function = value_at(entry, "function")
            if not isinstance(entry, dict) or not isinstance(function, str) or not isinstance(path[1], str):
                continue
            definition = definition_of(function, folder=folder)
            if definition is not None:
                yield path, entry, definition


def _settings(definition: SourceDefinition, *, overridden: Collection[str]) -> tuple[dict[str, JsonValue], list[str]]:
    """Return the settings of the decorator without the `overridden` ones, and their faults."""
    call = _call(definition)
    if call is None:
        return {}, []
    settings: dict[str, JsonValue] = {}
    wrong = []
    for keyword in call.keywords:
        if keyword.arg in overridden and keyword.arg != "hidden":
            continue
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            setting = repr(keyword.arg) if keyword.arg else f"'**{ast.unparse(keyword.value)}'"
            wrong.append(
                f"{setting} is not a literal, and modules are not imported to evaluate it; write it in the configuration"
            )
            continue
        if value is not None:
            settings[str(keyword.arg)] = list(value) if isinstance(value, tuple) else value
    wrong += check_settings(settings)
    return settings, [f"@tool in {definition.file.name} line {call.lineno}: {message}" for message in wrong]


def _call(definition: SourceDefinition) -> ast.Call | None:
    """Return the call of our decorator; None if it has no settings."""
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
    """Yield the imported names, each with its full name."""
    for _, node in bindings(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)


def parameters_of(arguments: ast.arguments) -> tuple[list[str], list[str], bool]:
    """Return the names of the parameters, those without a default, and whether any others are accepted."""
    ordered = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    named = {each.arg: default for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    needed = ordered[: len(ordered) - len(arguments.defaults)] + [
        name for name, default in named.items() if default is None
    ]
    return [*ordered, *named], needed, arguments.kwarg is not None


def _names(entry: Mapping[str, JsonValue], key: str) -> list[str]:
    """Return the names in an option; none if it is not a list or mapping, which the model reports."""
    value = entry.get(key)
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []


def _merged(entry: Mapping[str, JsonValue], settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    hidden: list[JsonValue] = list(dict.fromkeys([*_names(settings, "hidden"), *_names(entry, "hidden")]))
    defaults = {key: value for key, value in settings.items() if key != "name"}
    return {**defaults, **entry, **({"hidden": hidden} if hidden and isinstance(entry.get("hidden", []), list) else {})}
