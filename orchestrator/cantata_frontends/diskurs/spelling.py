"""Normalisation of a Diskurs document: keys in either spelling (`maxTrials`, `max_trials`), and variables of the environment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from pydantic.alias_generators import to_camel

from cantata.config.documents import Document
from cantata.config.source_map import KeyPath, SourceNode
from cantata.errors import Fault
from cantata.values import JsonValue

FREE_FORM_SECTIONS = frozenset({"configs", "parameters", "lockedFields", "agentDescriptions"})
"""The keys of these sections are names that the folder chooses."""
SECRET_KEY = "apiKey"
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::([^}]*))?\}")


def in_camel_case(document: Document) -> tuple[Document, list[Fault]]:
    """Return the document with all keys as `camelCase`, and a fault for each key that occurs in both spellings."""
    faults: list[Fault] = []
    data = _renamed(document.data, (), document, faults)
    source_map = document.source_map
    return dataclasses.replace(
        document, data=data, source_map=(lambda: _renamed_node(source_map())) if source_map else None
    ), faults


def with_variables(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Fault]]:
    """Return the document with `${VAR}` and `${VAR:default}` filled in, except API keys; and a fault for each variable that is not set."""
    faults: list[Fault] = []

    def filled(value: JsonValue, path: KeyPath) -> JsonValue:
        if isinstance(value, dict):
            return {key: filled(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each, (*path, i)) for i, each in enumerate(value)]
        if not isinstance(value, str) or (path and path[-1] == SECRET_KEY):
            return value
        return _VARIABLE.sub(lambda found: value_of(found, path), value)

    def value_of(found: re.Match[str], path: KeyPath) -> str:
        name, default = found[1], found[2]
        if (value := environ.get(name, default)) is not None:
            return value
        faults.append(
            document.fault(path, f"the environment variable {name!r} is not set; set it, or write ${{{name}:default}}")
        )
        return ""

    return dataclasses.replace(document, data=filled(document.data, ())), faults


def variable_of(secret: str) -> str | None:
    """Return the variable that `${VAR}` names; None if the text is anything else."""
    found = _VARIABLE.fullmatch(secret)
    return found[1] if found and not found[2] else None


def _renamed(value: JsonValue, path: KeyPath, document: Document, faults: list[Fault]) -> JsonValue:
    if isinstance(value, list):
        return [_renamed(each, (*path, i), document, faults) for i, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    renamed: dict[str, JsonValue] = {}
    for key, each in value.items():
        name = to_camel(key)
        if name in renamed:
            faults.append(document.fault((*path, key), f"the key {name!r} occurs twice, in two spellings"))
        renamed[name] = each if name in FREE_FORM_SECTIONS else _renamed(each, (*path, key), document, faults)
    return renamed


def _renamed_node(node: SourceNode) -> SourceNode:
    if not isinstance(node.value, dict):
        return dataclasses.replace(node, inside={key: _renamed_node(each) for key, each in node.inside.items()})
    lines: dict[str | int, int] = {to_camel(str(key)): line for key, line in node.lines.items()}
    inside: dict[str | int, SourceNode] = {
        to_camel(str(key)): each if to_camel(str(key)) in FREE_FORM_SECTIONS else _renamed_node(each)
        for key, each in node.inside.items()
    }
    return dataclasses.replace(node, lines=lines, inside=inside)
