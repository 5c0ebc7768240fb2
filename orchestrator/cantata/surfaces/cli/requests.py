"""Configurations and chain requests that arguments name: standard input, a file, or a chain of the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cantata.client.requests import CheckedChain, checked_chain
from cantata.config import loading as configuration
from cantata.config.chain_requests import load_request, with_changes, with_lines
from cantata.config.documents import Document, parse
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions
from cantata.values import JsonValue


def read_document(file: str) -> Document:
    """Read a document. Raises ConfigError."""
    return parse(sys.stdin.read(), source="standard input") if file == "-" else configuration.read(Path(file))


def load_definitions(config: str | None) -> Definitions:
    """Return the definitions of the configuration, checked together with its chains. Raises ConfigError with every fault."""
    path = configuration.find(config)
    found = configuration.load_sound(path)
    if found.faults:
        refused = ", or are refused when they are called" if found.definitions.refused else ""
        click.echo(f"{path}: parts of it have no effect here{refused}; `submit check {path}` tells which", err=True)
    return found.definitions


def check_tasks(definitions: Definitions) -> None:
    """Raise ConfigError if tools are tasks of an application that nobody named: a stack of a command's own cannot call them."""
    tools = {**definitions.tools, **definitions.skills}
    if not os.environ.get("CANTATA_APP") and (name := next((name for name, tool in tools.items() if tool.task), None)):
        raise ConfigError(
            f"tool {name!r} is a task of your Celery application: name that in CANTATA_APP, such as shop.celery:app"
        )


def load_checked_chain(
    file: str,
    definitions: Definitions,
    *,
    given: dict[str, JsonValue] | None = None,
    timeout_s: float | None = None,
    webhooks: Sequence[str] = (),
    is_draft: bool = False,
) -> CheckedChain:
    """Return a chain request, with the changes of the command line, checked against the definitions.

    Args:
        file: "-" for standard input, a file, or a chain of the configuration.
        definitions: The definitions that the request may name.
        given: The initial input in place of its own.
        timeout_s: The timeout in place of its own.
        webhooks: Webhooks beside its own.
        is_draft: Accept a request without an input, which it may get later.

    Raises:
        ConfigError: The request has faults; the error has all of them.
    """
    if file == "-":
        document = read_document(file)
        request = load_request(document)
    else:
        request, document = configuration.request_named(file, definitions)
    try:
        request = with_changes(request, initial_input=given, timeout_s=timeout_s, webhooks=webhooks)
        return checked_chain(request, definitions, is_draft=is_draft)
    except ConfigError as error:
        raise ConfigError(
            with_lines(error.faults, document), source=document.source, code=error.code, asked=error.asked
        ) from error
