"""The client for coroutines has what `Client` has: its methods, with their parameters and texts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from cantata.client.async_client import AsyncClient, AsyncRun
from cantata.client.client import Client
from cantata.client.runs import ChainRun, TurnRun

BLOCKING_ONLY = {
    "embedded", "with_definitions", "find_config",  # `AsyncClient.of` takes a client that was made so
    "definitions", "of", "ledger", "redis", "app", "fleet", "schedules", "sessions", "memory", "batches", "feed_batch",  # `call` reads
    "submit_checked",  # of a request that the gateway checked
    "logs", "export", "names", "ask", "nearest_step", "events_of", "request", "kind", "wait",  # `call` of a run calls them; `result` waits
}  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "ours"), [(Client, AsyncClient), (TurnRun, AsyncRun), (ChainRun, AsyncRun)])
def test_every_method_is_there_with_the_same_parameters(blocking: type, ours: type) -> None:
    names = public(blocking) - BLOCKING_ONLY

    assert names - public(ours) == set()
    assert [name for name in names if parameters(blocking, name) != parameters(ours, name)] == []
    assert [name for name in names if not inspect.getdoc(getattr(ours, name))] == []


def parameters(kind: type, name: str) -> list[tuple[str, Any]]:
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return [(each.name, each.default) for each in found]


def test_it_is_made_with_the_arguments_of_the_client_and_the_number_of_its_threads() -> None:
    theirs, ours = inspect.signature(Client).parameters, inspect.signature(AsyncClient).parameters

    assert [*ours.values()][:-1] == [*theirs.values()]
    assert [*ours][-1] == "threads"


def test_only_what_is_named_is_left_out() -> None:
    assert public(Client) | public(TurnRun) | public(ChainRun) >= BLOCKING_ONLY
