"""`submit memory`: the memory bank of agents, tools and users."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from cantata.bounds import MAX_MEMORY_TTL_S, OutOfBoundsError, read_json_or_text
from cantata.client.memory_bank import MemoryBank
from cantata.client.records import DEFAULT
from cantata.surfaces.cli.connect import find_service_url, start_reader
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import json_option
from cantata.surfaces.cli.views.progress import await_own
from cantata.text import text_format

TTL = click.FloatRange(min=0, min_open=True, max=int(MAX_MEMORY_TTL_S))


@click.group()
def memory() -> None:
    """Read, store and delete memory."""


def scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a tenant and a session."""
    for option in (
        click.option(
            "--session",
            metavar="NAME",
            help="The memory of this session, in place of the memory that all sessions of its tenant share.",
        ),
        click.option(
            "--tenant", metavar="NAME", default="", help="The tenant, as in the label `tenant` of runs; none if absent."
        ),
    ):
        command = option(command)
    return command


namespace_option = click.option(
    "--namespace", metavar="NAME", default=DEFAULT, show_default=True, help="The namespace."
)


@memory.command()
@click.argument("key")
@namespace_option
@scope_options
@json_option
def get(key: str, namespace: str, tenant: str, session: str | None, as_json: bool) -> int:
    """Print a value: a text as it is, any other value as JSON."""
    with _open_bank(tenant, session) as bank:
        value = bank.retrieve_memory(key, namespace, _MISSING)
    if value is _MISSING:
        click.echo(f"there is no key {key!r} in namespace {namespace!r}; `submit memory list` shows the keys", err=True)
        return FAILED
    click.echo(
        text_format.clean(value) if isinstance(value, str) and not as_json else json.dumps(value, ensure_ascii=False)
    )
    return 0


@memory.command("set")
@click.argument("key")
@click.argument("value")
@namespace_option
@click.option(
    "--ttl", type=TTL, metavar="SECONDS", help="How long it is kept; if absent, as its namespace says, else forever."
)
@scope_options
@json_option
def set_(
    key: str, value: str, namespace: str, ttl: float | None, tenant: str, session: str | None, as_json: bool
) -> int:
    """Store a value: JSON if it is valid JSON, else the text."""
    with _open_bank(tenant, session, may_start=True) as bank:
        bank.store_memory(key, _json_or_text(value), namespace, ttl)
    if as_json:
        click.echo(json.dumps({"namespace": namespace, "key": key}, ensure_ascii=False))
    return 0


@memory.command("list")
@namespace_option
@scope_options
@json_option
def list_(namespace: str, tenant: str, session: str | None, as_json: bool) -> int:
    """List the keys of a namespace. Those of `conversations` are the sessions."""
    with _open_bank(tenant, session) as bank:
        _print_names(
            bank.list_memories(namespace),
            as_json,
            f"namespace {namespace!r} is empty; `submit memory namespaces` lists those with values",
        )
    return 0


@memory.command()
@scope_options
@json_option
def namespaces(tenant: str, session: str | None, as_json: bool) -> int:
    """List the namespaces that have values."""
    with _open_bank(tenant, session) as bank:
        _print_names(bank.namespaces(), as_json, "no namespace has values")
    return 0


@memory.command()
@click.option("--namespace", metavar="NAME", help="The namespace to delete.")
@click.option("--all", "everything", is_flag=True, help="Delete all namespaces of this tenant, or of this session.")
@scope_options
@json_option
def clear(namespace: str | None, everything: bool, tenant: str, session: str | None, as_json: bool) -> int:
    """Delete the values of a namespace, or of all of them."""
    if (namespace is None) != everything:
        raise click.UsageError("expected either --namespace NAME or --all")
    with _open_bank(tenant, session) as bank:
        count = bank.clear_memories(namespace)
    click.echo(
        json.dumps({"cleared": count}) if as_json else f"deleted {text_format.counted(count, 'value')}", err=not as_json
    )
    return 0


_MISSING: Any = object()


@contextmanager
def _open_bank(tenant: str, session: str | None, *, may_start: bool = False) -> Iterator[MemoryBank]:
    """Open the bank at REDIS_URL, else of the stack of this folder, else of a stack without workers that is started for this command."""
    url = find_service_url()
    stack = None if url else start_reader(may_be_new=may_start)
    with stack or nullcontext():
        if stack:
            await_own(stack)
        with MemoryBank(stack.url if stack else url, tenant=tenant, session=session) as bank:
            yield bank


def _json_or_text(text: str) -> Any:
    try:
        return read_json_or_text(text)
    except OutOfBoundsError as error:
        raise click.BadParameter(str(error)) from error


def _print_names(names: list[str], as_json: bool, if_none: str) -> None:
    if as_json:
        click.echo(json.dumps(names, ensure_ascii=False))
    elif not names:
        click.echo(if_none, err=True)
    for name in () if as_json else names:
        click.echo(name if name.isprintable() else json.dumps(name))
