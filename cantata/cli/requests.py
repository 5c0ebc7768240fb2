"""Reads the configuration, and the chain request that FILE means: standard input, a file, or a chain of the configuration."""

from __future__ import annotations

import sys
from pathlib import Path

from cantata.config import loading as configuration
from cantata.config.chain_requests import load_request, with_lines
from cantata.config.documents import Document, parse
from cantata.errors import ConfigError
from cantata.models.definitions import Definitions
from cantata.models.values import JsonValue
from cantata.models.wire import ChainRequest
from cantata.planning.chain_checks import checks


def document_of(file: str) -> Document:
    """What FILE says. Raises ConfigError."""
    return parse(sys.stdin.read(), source="standard input") if file == "-" else configuration.read(Path(file))


def definitions_of(config: str | None) -> Definitions:
    """Return the definitions of the configuration, sound in all that its chains name too. Raises ConfigError with every fault."""
    return configuration.load_sound(configuration.find(config))


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
    faults, code = checks.check(request, definitions, is_draft=is_draft)
    if faults:
        raise ConfigError(with_lines(faults, document), source=document.source, code=code, asked=request.model_dump())
    return request


def _changed(request: ChainRequest, *, given: dict[str, JsonValue] | None, timeout_s: float | None) -> ChainRequest:
    changes: dict[str, object] = {}
    if given is not None:
        changes["initial_input"] = given
    if timeout_s is not None:
        changes["timeout"] = timeout_s
    return request.model_copy(update=changes)
