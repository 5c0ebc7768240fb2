"""Finds the service that a command talks to, or starts one for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from cantata.embedded import Home, Stack, attach, status
from cantata.errors import UnavailableError

if TYPE_CHECKING:
    from cantata.cli.run_queries import RunQueries
    from cantata.cli.submission import RunSubmission
    from cantata.models.definitions import Definitions


@contextmanager
def open_submission(*, config: str | Definitions | None = None, as_json: bool = False) -> Iterator[RunSubmission]:
    """A submission at REDIS_URL, else at the stack that `submit up` keeps in this folder, else at one that lives as long as this command."""
    url = find_service_url()
    stack = None if url else Stack.launch(config=config if isinstance(config, str) else None)
    with stack or nullcontext():
        from cantata.cli.submission import RunSubmission  # noqa: PLC0415  # Celery and pydantic take 0.9 s to load, in which the workers start

        with RunSubmission(url, stack=stack, config=config, as_json=as_json) as submission:
            yield submission


@contextmanager
def open_queries(*, workers: bool, as_json: bool = False) -> Iterator[RunQueries]:
    """The same, where runs are kept already; without `workers` a stack of our own has none for agents and tools."""
    url = find_service_url()
    if url is None and not Home().data.exists():
        raise UnavailableError("no runs are kept here: there is no .cantata in this folder, and no REDIS_URL")
    stack = None if url else Stack.launch() if workers else Stack.launch(agents=0, tools=0)
    with stack or nullcontext():
        from cantata.cli.run_queries import RunQueries  # noqa: PLC0415  # as above

        with RunQueries(url, stack=stack, as_json=as_json) as queries:
            yield queries


def find_service_url() -> str | None:
    """Where a service is that was there before us. Raises UnavailableError if the stack that is kept in this folder gives no answer."""
    named = os.environ.get("REDIS_URL")
    if named:
        return named
    kept = attach()
    if kept is None and (here := status()).kept:
        raise UnavailableError(
            f"the Redis of the stack in {here.home} gives no answer; `submit status` says how the stack stands, `submit down` stops it"
        )
    if kept is None:
        return None
    if fault := kept.code_fault:
        click.echo(f"warning: the stack in {kept.home.path} still serves the code of before: {fault}", err=True)
    return kept.url
