"""Reader of chain requests, in their wire form (`type: chain/req`) or plain: `{nodes, entry_node, initial_input}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from cantata.config.documents import Document
from cantata.config.faults import faults_of, in_order
from cantata.config.formats import formats
from cantata.config.source_map import KeyPath, find, path_text, value_at
from cantata.errors import ConfigError, Fault
from cantata.flows.definitions import Definitions
from cantata.flows.wire import ChainRequest, fault_of_kind
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue

CONFIGURES = Definitions.model_fields.keys() - {"folder"}
"""Top-level keys of configuration files in our own format."""


def is_request(document: Document) -> bool:
    """Return whether a document is meant as a chain request, not as a configuration."""
    return isinstance(document.data, dict) and ("nodes" in document.data or "/" in str(document.data.get("type")))


def load_request(document: Document) -> ChainRequest:
    """Return the request. Raises ConfigError with all faults of its form; the names in its nodes are checked when it is submitted."""
    if not is_request(document) and _is_configuration(document):
        fault = Fault(_configuration_message(document), line=document.line(("chains",)))
        raise ConfigError([fault], source=document.source, asked=document.data)
    kind = str(value_at(document.data, "type"))
    if "/" in kind and not kind.startswith("chain/"):
        near = nearest(kind, ["chain/req"], cutoff=0.8)
        message = f"of A2E's messages only 'chain/req' is read, not {kind!r}{hint(near) or '; write the call as a node of a chain'}"
        raise ConfigError([document.fault(("type",), message)], source=document.source, asked=document.data)
    if isinstance(value_at(document.data, "nodes"), dict):
        faults = [document.fault(("nodes",), "expected a list of nodes, each with its 'node_id', found a mapping")]
        raise ConfigError(faults, source=document.source, asked=document.data)
    try:
        return ChainRequest.model_validate(document.data)
    except ValidationError as error:
        faults = in_order([*faults_of(error, document, ChainRequest), *kind_faults(document, "nodes.*.kind")])
        raise ConfigError(faults, source=document.source, asked=document.data) from error


def _is_configuration(document: Document) -> bool:
    if isinstance(document.data, dict) and not CONFIGURES.isdisjoint(document.data):
        return True
    return any(each.detects(Path(document.source), document) for each in formats())


def _configuration_message(document: Document) -> str:
    chains = value_at(document.data, "chains")
    run = "`submit turn TEXT --config FILE` asks its agents"
    if isinstance(chains, dict) and chains:
        run = f"name it with --config, and one of its chains in place of this file: {', '.join(map(repr, chains))}"
    return f"this is a configuration, not a chain request, which has 'nodes'; {run}"


def kind_faults(document: Document, pattern: str) -> Iterator[Fault]:
    """Yield a fault for each unknown kind of node. If the form of a document is valid, the check of the chain reports them instead."""
    for path, kind in find(document.data, pattern):
        if isinstance(kind, str) and (message := fault_of_kind(kind)):
            yield document.fault(path, message)


def request_from(data: JsonValue) -> ChainRequest:
    """Return the request in plain data, such as that of a Python program."""
    return load_request(Document(data, source="chain request"))


def with_changes(
    request: ChainRequest,
    *,
    initial_input: Mapping[str, JsonValue] | None = None,
    timeout_s: float | None = None,
    webhooks: Sequence[str] = (),
) -> ChainRequest:
    """Return a request with another input and time limit, and further webhooks; nothing else of it is parsed. Raises ConfigError."""
    changes: dict[str, JsonValue] = {}
    if initial_input is not None:
        changes["initial_input"] = dict(initial_input)
    if timeout_s is not None:
        changes["timeout"] = timeout_s
    if webhooks:
        changes["webhooks"] = [*request.webhooks, *webhooks]
    if not changes:
        return request
    try:
        parsed = request_from({"nodes": [], **changes})
    except ConfigError as error:
        raise ConfigError(
            error.faults, source=error.source, code=error.code, asked={**request.model_dump(), **changes}
        ) from error
    return request.model_copy(update={name: getattr(parsed, name) for name in changes})


def with_lines(faults: Iterable[Fault], document: Document) -> list[Fault]:
    """Return faults of a check, which have no lines, with the lines of the document."""
    return [
        fault if fault.line else replace(fault, line=document.line(_path(fault.where, document.data)))
        for fault in faults
    ]


def _path(where: str, data: JsonValue) -> KeyPath:
    """Return the key path of a location such as `nodes[3] 'fetch'.input_map.url` or `chains.report.nodes[3] 'fetch'.name`."""
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
