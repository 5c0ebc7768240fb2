"""Compilation of chains that are executed together into one run: an agent for each, and a chain request with their dependencies.

    start?    starts all chains without dependencies
    x?        starts chain x when all of its dependencies are completed
    x         the chain
    failed!   the target of a chain that fails, so that the others go on

A chain waits for its dependencies, and a serial one also for the serial one before it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cantata.flows.definitions import Agent, Definitions
from cantata.flows.expressions import templates
from cantata.flows.instructions import Instruction, MemoryStep, PromptStep
from cantata.flows.turns.agent_steps import template
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue
from cantata_frontends.chainbuilder.plan import BuilderBase, BuilderPlan

START, FAILED = "start?", "failed!"
FAILED_CHAIN = Agent(description="a chain of the group failed", instructions=[MemoryStep(memory="default")])
"""Returns its input: a decision, which calls no model."""


def definitions_of(plan: BuilderPlan, chain_ids: Iterable[str], folder: str) -> Definitions:
    """Return the definitions of a run of chains; functions are imported from `folder` if the plan names none."""
    chains = {
        chain_id: Agent(
            models=[plan.base.model],
            instructions=[
                _in_base_template(plan.base, instruction) for instruction in plan.chains[chain_id].instructions
            ],
            chainbreakers=plan.chains[chain_id].chainbreakers,
            timeout_s=plan.base.step_timeout_s,
            stream=False,
        )
        for chain_id in chain_ids
    }
    return Definitions(
        folder=plan.folder or folder, agents={**plan.agents, **chains, FAILED: FAILED_CHAIN}, tools=plan.tools
    )


def request_of(
    plan: BuilderPlan, chain_ids: Iterable[str], text: str, done: Mapping[str, JsonValue], *, timeout_s: float | None
) -> ChainRequest:
    """Return the request that runs chains on a text; `done` are the outputs of their dependencies outside of the run."""
    ordered = plan.ordered(chain_ids)
    sources = sources_of(plan, ordered)
    roots = [chain_id for chain_id in ordered if not sources[chain_id]]
    nodes = [] if len(roots) == 1 else [_start(roots)]
    for chain_id in ordered:
        waits_for = sources[chain_id] if sources[chain_id] or len(roots) == 1 or chain_id == roots[0] else [START]
        nodes += _with_gate(_chain(plan, chain_id, ordered), waits_for, alone=len(ordered) == 1)
    if len(ordered) > 1:
        nodes.append(ChainNode(node_id=FAILED, kind="agent", name=FAILED))
    initial: dict[str, JsonValue] = {"input": text, **({"done": dict(done)} if done else {})}
    return ChainRequest(nodes=nodes, entry_node=nodes[0].node_id, initial_input=initial, timeout=timeout_s or 0.0)


def sources_of(plan: BuilderPlan, ordered: Sequence[str]) -> dict[str, list[str]]:
    """Return the chains that each chain of a run waits for, in topological order."""
    sources: dict[str, list[str]] = {}
    last_serial: str | None = None
    for chain_id in ordered:
        member = plan.chains[chain_id]
        needed = [dependency for dependency in member.dependencies if dependency in sources]
        if member.execution_mode == "serial":
            needed += [last_serial] if last_serial is not None and last_serial not in needed else []
            last_serial = chain_id
        sources[chain_id] = needed
    return sources


def _start(roots: Sequence[str]) -> ChainNode:
    return ChainNode(node_id=START, kind="branch", condition="`true`", true_node=roots[0])


def _chain(plan: BuilderPlan, chain_id: str, together: Sequence[str]) -> ChainNode:
    member = plan.chains[chain_id]
    named = {
        name
        for instruction in member.instructions
        for name in templates.names(template(_in_base_template(plan.base, instruction)))
    }
    reads = {
        each: json.dumps(each) if each in together else f"input.done.{json.dumps(each)}"
        for each in member.dependencies
        if each in named
    }
    tasks = {placeholder: _literal(task) for placeholder, task in plan.tasks.items() if placeholder in named}
    return ChainNode(
        node_id=chain_id, kind="agent", name=chain_id, input_map={"input": "input.input", **reads, **tasks}
    )


def _literal(text: str) -> str:
    """Return the expression of a text."""
    return "`" + json.dumps(text).replace("`", "\\u0060") + "`"


def _with_gate(node: ChainNode, waits_for: Sequence[str], *, alone: bool) -> list[ChainNode]:
    """Return a node with its dependencies. `deps` are met when one of several is done and the others failed; the gate requires all."""
    if not alone:
        node = node.model_copy(update={"on_error": FAILED})
    if len(waits_for) < 2:
        return [node.model_copy(update={"deps": list(waits_for)})]
    all_done = " && ".join(f"{json.dumps(each)} != `null`" for each in waits_for)
    gate = ChainNode(
        node_id=f"{node.node_id}?", kind="branch", condition=all_done, true_node=node.node_id, deps=list(waits_for)
    )
    return [gate, node]


def _in_base_template(base: BuilderBase, instruction: Instruction) -> Instruction:
    """Return an instruction within the base template, if it is a text."""
    match instruction:
        case str():
            return templates.fill(base.instruction, {"instruction": instruction})
        case PromptStep():
            return instruction.model_copy(
                update={"prompt": templates.fill(base.instruction, {"instruction": instruction.prompt})}
            )
    return instruction


# --- runs by a function of the caller -------------------------------------------------------------------------------


Executor = Callable[[list[tuple[str, str]]], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""The documented `parallel_executor`. Receives (chain, input) of each parallel chain that can start, and returns the output of each."""


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
        raise ValueError(
            f"parallel_executor returns the outputs of {', '.join(map(repr, chain_ids))}, by chain; not {answer!r}"
        )
    return dict(answer)


async def _awaited(answer: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return await answer
