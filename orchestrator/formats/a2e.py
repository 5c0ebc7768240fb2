"""Reads chain requests, in their wire form (`type: chain/req`) or plain: `{nodes, entry_node, initial_input}`."""

from __future__ import annotations

from pydantic import ValidationError

from orchestrator.errors import ConfigError, Fault
from orchestrator.formats.documents import Document
from orchestrator.formats.faults import faults_of
from orchestrator.formats.marks import step
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import ChainRequest


def is_request(document: Document) -> bool:
    """Whether it means to be a chain request, and not a configuration."""
    return isinstance(document.data, dict) and ("nodes" in document.data or str(document.data.get("type")).startswith("chain/"))


def load_request(document: Document) -> ChainRequest:
    """The request; a ConfigError lists all that is wrong with the form of it. What its nodes name is checked when it is planned."""
    chains = step(document.data, "chains")
    if isinstance(chains, dict) and not is_request(document):
        names = ", ".join(map(repr, chains)) or "none"
        message = f"this is a configuration, not a chain request, which has 'nodes'; a node of kind 'chain' runs its chains: {names}"
        raise ConfigError([Fault(message, line=document.line(("chains",)))], source=document.source, asked=document.data)
    if isinstance(step(document.data, "nodes"), dict):
        faults = [document.fault(("nodes",), "expected a list of nodes, each with its 'node_id', found a mapping")]
        raise ConfigError(faults, source=document.source, asked=document.data)
    try:
        return ChainRequest.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(faults_of(error, document, ChainRequest), source=document.source, asked=document.data) from error


def request_from(data: JsonValue) -> ChainRequest:
    """The request in plain data, such as a Python program has."""
    return load_request(Document(data, source="chain request"))
