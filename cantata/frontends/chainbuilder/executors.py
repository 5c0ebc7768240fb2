"""Execution of parallel chains by a function of the caller, the documented `parallel_executor`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cantata.frontends.chainbuilder.plan import BuilderPlan
from cantata.frontends.chainbuilder.run_request import sources_of

Executor = Callable[[list[tuple[str, str]]], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""Receives (chain, input) of each parallel chain that can start, and returns the output of each."""


def waves(plan: BuilderPlan, chain_ids: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Return chains in the order in which they can start: for each wave those that are not parallel, and those that are."""
    ordered = plan.ordered(chain_ids)
    sources, depth = sources_of(plan, ordered), dict[str, int]()
    for chain_id in ordered:
        depth[chain_id] = 1 + max((depth[source] for source in sources[chain_id]), default=-1)
    found: list[tuple[list[str], list[str]]] = [([], []) for _ in range(1 + max(depth.values()))]
    for chain_id in ordered:
        found[depth[chain_id]][plan.chains[chain_id].execution_mode == "parallel"].append(chain_id)
    return found


def call(executor: Executor, chain_ids: Sequence[str], text: str) -> dict[str, Any]:
    """Return the outputs that the caller's function returns; an async one gets an event loop of its own. Raises ValueError."""
    answer = executor([(chain_id, text) for chain_id in chain_ids])
    if inspect.isawaitable(answer):
        with ThreadPoolExecutor(1) as beside:  # this thread may run an event loop already
            answer = beside.submit(asyncio.run, _awaited(answer)).result()
    if not isinstance(answer, Mapping) or set(answer) != set(chain_ids):
        raise ValueError(f"parallel_executor returns the outputs of {', '.join(map(repr, chain_ids))}, by chain; not {answer!r}")
    return dict(answer)


async def _awaited(answer: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return await answer
