"""Reads the configuration, and the chain request that FILE means: standard input, a file, or a chain of the configuration."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.errors import ConfigError, Fault
from orchestrator.formats.a2e import load_request
from orchestrator.formats.documents import Document, parse
from orchestrator.formats.marks import KeyPath, place, step
from orchestrator.models.definitions import Definitions
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import ChainRequest
from orchestrator.planning.strategies import chains


def document_of(file: str) -> Document:
    """What FILE says. Raises ConfigError."""
    return parse(sys.stdin.read(), source="standard input") if file == "-" else configuration.read(Path(file))


def definitions_of(config: str | None) -> Definitions:
    """The definitions of the configuration, sound in all that its chains name too. Raises ConfigError with every fault."""
    path = configuration.find(config)
    definitions = configuration.load(path)
    faults = chains.check_chains(definitions)
    if faults and path:
        swarm = configuration.load_langswarm(path)
        raise ConfigError(swarm.in_files(faults) if swarm else with_lines(faults, configuration.read(path)), source=str(path))
    return definitions


def request_of(
    file: str,
    definitions: Definitions,
    *,
    given: dict[str, JsonValue] | None = None,
    timeout_s: float | None = None,
    is_draft: bool = False,
) -> ChainRequest:
    """The request, with what the command line says instead, sound in all that it names. Raises ConfigError with every fault.

    A draft without an input may be given one yet.
    """
    if file == "-":
        document = document_of(file)
        request = load_request(document)
    else:
        request, document = configuration.request_named(file, definitions)
    request = _changed(request, given=given, timeout_s=timeout_s)
    faults, code = chains.check(request, definitions, is_draft=is_draft)
    if faults:
        raise ConfigError(with_lines(faults, document), source=document.source, code=code, asked=request.model_dump())
    return request


def with_lines(faults: Iterable[Fault], document: Document) -> list[Fault]:
    """The faults that planning found, which knows no lines, with the lines of the document."""
    return [fault if fault.line else replace(fault, line=document.line(_path(fault.where, document.data))) for fault in faults]


def _changed(request: ChainRequest, *, given: dict[str, JsonValue] | None, timeout_s: float | None) -> ChainRequest:
    changes: dict[str, object] = {}
    if given is not None:
        changes["initial_input"] = given
    if timeout_s is not None:
        changes["timeout"] = timeout_s
    return request.model_copy(update=changes)


def _path(where: str, data: JsonValue) -> KeyPath:
    """The keys that lead to a place, such as `nodes[3] 'fetch'.input_map.url` or `chains.report.nodes[3] 'fetch'.name`."""
    start: KeyPath = ()
    chains = step(data, "chains")
    for name in chains if isinstance(chains, dict) else ():
        if where.startswith(f"{place(('chains', name))}."):
            start = ("chains", name)
    for part in start:
        data = step(data, part)
    rest = where.removeprefix(f"{place(start)}." if start else "")
    node = re.match(r"nodes\[(\d+)\]", rest)
    if node is None:
        return (*start, *rest.split("."))
    path: KeyPath = ("nodes", int(node.group(1)))
    field = rest.removeprefix(place(path, data)).removeprefix(".")
    return (*start, *path, *(field.split(".") if field else ()))
