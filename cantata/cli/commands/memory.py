"""`submit memory`: what agents, tools and users want remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from cantata import text_format
from cantata.cli.connect import find_service_url
from cantata.cli.main import FAILED
from cantata.cli.options import as_json
from cantata.client.memory_bank import MemoryBank
from cantata.embedded import Home, Stack
from cantata.errors import UnavailableError
from cantata.models.values import JsonValue
from cantata.state.memory.bank import DEFAULT, MAX_TTL_S

TTL = click.FloatRange(min=0, min_open=True, max=int(MAX_TTL_S))


@click.group()
def memory() -> None:
    """Read, keep and forget what is remembered."""


def scoped(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command about one tenant's memories, or those of one session."""
    for option in (
        click.option("--session", metavar="NAME", help="The memories of this session, in place of those all its tenant's sessions share."),
        click.option("--tenant", metavar="NAME", default="", help="Whose: the label `tenant` of runs; nobody's if absent."),
    ):
        command = option(command)
    return command


namespaced = click.option("--namespace", metavar="NAME", default=DEFAULT, show_default=True, help="Where it lies.")


@memory.command()
@click.argument("key")
@namespaced
@scoped
@as_json
def get(key: str, namespace: str, tenant: str, session: str | None, as_json: bool) -> int:
    """Print a value: a text as it is, all else as JSON."""
    with _opened(tenant, session) as bank:
        value = bank.retrieve_memory(key, namespace, _MISSING)
    if value is _MISSING:
        click.echo(f"nothing is remembered under {key!r} in {namespace!r}; `submit memory list` shows what is", err=True)
        return FAILED
    click.echo(text_format.clean(value) if isinstance(value, str) and not as_json else json.dumps(value, ensure_ascii=False))
    return 0


@memory.command("set")
@click.argument("key")
@click.argument("value")
@namespaced
@click.option("--ttl", type=TTL, metavar="SECONDS", help="How long it is kept; for good, or as long as its namespace says, if absent.")
@scoped
@as_json
def set_(key: str, value: str, namespace: str, ttl: float | None, tenant: str, session: str | None, as_json: bool) -> int:
    """Keep a value: JSON if it is, else the text."""
    with _opened(tenant, session, starts=True) as bank:
        bank.store_memory(key, _json_or_text(value), namespace, ttl)
    if as_json:
        click.echo(json.dumps({"namespace": namespace, "key": key}, ensure_ascii=False))
    return 0


@memory.command("list")
@namespaced
@scoped
@as_json
def list_(namespace: str, tenant: str, session: str | None, as_json: bool) -> int:
    """List the keys of a namespace. In `conversations` they are the sessions."""
    with _opened(tenant, session) as bank:
        _print_names(
            bank.list_memories(namespace), as_json, f"nothing is remembered in {namespace!r}; `submit memory namespaces` shows where"
        )
    return 0


@memory.command()
@scoped
@as_json
def namespaces(tenant: str, session: str | None, as_json: bool) -> int:
    """List the namespaces that hold something."""
    with _opened(tenant, session) as bank:
        _print_names(bank.namespaces(), as_json, "nothing is remembered here")
    return 0


@memory.command()
@click.option("--namespace", metavar="NAME", help="What is forgotten.")
@click.option("--all", "everything", is_flag=True, help="Forget all namespaces of this tenant, or of this session.")
@scoped
@as_json
def clear(namespace: str | None, everything: bool, tenant: str, session: str | None, as_json: bool) -> int:
    """Forget a namespace, or all of them."""
    if (namespace is None) != everything:
        raise click.UsageError("say what is to be forgotten: --namespace NAME, or --all")
    with _opened(tenant, session) as bank:
        count = bank.clear_memories(namespace)
    click.echo(json.dumps({"cleared": count}) if as_json else f"{count} value{'' if count == 1 else 's'} forgotten", err=not as_json)
    return 0


_MISSING: Any = object()


@contextmanager
def _opened(tenant: str, session: str | None, *, starts: bool = False) -> Iterator[MemoryBank]:
    """The bank at REDIS_URL, else of the stack of this folder; else of one without workers that lives as long as this command."""
    url = find_service_url()
    if url is None and not starts and not Home().data.exists():
        raise UnavailableError("nothing is kept here: there is no .cantata in this folder, and no REDIS_URL")
    stack = None if url else Stack.launch(agents=0, tools=0)
    with stack or nullcontext():
        if stack:
            stack.wait_ready()
        with MemoryBank(stack.url if stack else url, tenant=tenant, session=session) as bank:
            yield bank


def _json_or_text(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _print_names(names: list[str], as_json: bool, if_none: str) -> None:
    if as_json:
        click.echo(json.dumps(names, ensure_ascii=False))
    elif not names:
        click.echo(if_none, err=True)
    for name in () if as_json else names:
        click.echo(name if name.isprintable() else json.dumps(name))
