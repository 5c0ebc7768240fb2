"""Reads chain requests, in their wire form (`type: chain/req`) or plain: `{nodes, entry_node, initial_input}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order
from cantata.config.source_map import KeyPath, find, path_text, value_at
from cantata.errors import ConfigError, Fault
from cantata.models.definitions import Definitions
from cantata.models.values import JsonValue
from cantata.models.wire import ChainRequest, fault_of_kind

CONFIGURES = frozenset({*Definitions.model_fields, "workflows", "firstContact", "first_contact"}) - {"folder"}
"""What files begin with that configure, whoever's they are."""


def is_request(document: Document) -> bool:
    """Whether it means to be a chain request, and not a configuration."""
    return isinstance(document.data, dict) and ("nodes" in document.data or str(document.data.get("type")).startswith("chain/"))


def load_request(document: Document) -> ChainRequest:
    """The request; a ConfigError lists all that is wrong with the form of it. What its nodes name is checked when it is planned."""
    if not is_request(document) and isinstance(document.data, dict) and not CONFIGURES.isdisjoint(document.data):
        fault = Fault(_configuration_message(document), line=document.line(("chains",)))
        raise ConfigError([fault], source=document.source, asked=document.data)
    if isinstance(value_at(document.data, "nodes"), dict):
        faults = [document.fault(("nodes",), "expected a list of nodes, each with its 'node_id', found a mapping")]
        raise ConfigError(faults, source=document.source, asked=document.data)
    try:
        return ChainRequest.model_validate(document.data)
    except ValidationError as error:
        faults = in_order([*faults_of(error, document, ChainRequest), *kind_faults(document, "nodes.*.kind")])
        raise ConfigError(faults, source=document.source, asked=document.data) from error


def _configuration_message(document: Document) -> str:
    chains = value_at(document.data, "chains")
    run = "`submit turn TEXT --config FILE` asks those it names"
    if isinstance(chains, dict) and chains:
        run = f"name it with --config, and one of its chains in place of this file: {', '.join(map(repr, chains))}"
    return f"this is a configuration, not a chain request, which has 'nodes'; {run}"


def kind_faults(document: Document, pattern: str) -> Iterator[Fault]:
    """A fault for each kind of node that there is not; where the form of a document is sound, its check tells of them with all else."""
    for path, kind in find(document.data, pattern):
        if isinstance(kind, str) and (message := fault_of_kind(kind)):
            yield document.fault(path, message)


def request_from(data: JsonValue) -> ChainRequest:
    """The request in plain data, such as a Python program has."""
    return load_request(Document(data, source="chain request"))


def with_lines(faults: Iterable[Fault], document: Document) -> list[Fault]:
    """Return the faults that planning found, which knows no lines, with the lines of the document."""
    return [fault if fault.line else replace(fault, line=document.line(_path(fault.where, document.data))) for fault in faults]


def _path(where: str, data: JsonValue) -> KeyPath:
    """The keys that lead to a place, such as `nodes[3] 'fetch'.input_map.url` or `chains.report.nodes[3] 'fetch'.name`."""
    start: KeyPath = ()
    chains = value_at(data, "chains")
    for name in chains if isinstance(chains, dict) else ():
        if where.startswith(f"{path_text(('chains', name))}."):
            start = ("chains", name)
    for part in start:
        data = value_at(data, part)
    rest = where.removeprefix(f"{path_text(start)}." if start else "")
    node = re.match(r"nodes\[(\d+)\]", rest)
    if node is None:
        return (*start, *rest.split("."))
    path: KeyPath = ("nodes", int(node.group(1)))
    field = rest.removeprefix(path_text(path, data)).removeprefix(".")
    return (*start, *path, *(field.split(".") if field else ()))
