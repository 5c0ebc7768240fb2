"""The graph of a run that has a provider's batch answer rows: one step creates the batch, the next one waits for its end.

Of a run that is cancelled meanwhile, another run cancels the batch.
"""

from __future__ import annotations

from cantata.flows.definitions import Definitions
from cantata.flows.graph import Edge, Graph, Step
from cantata.flows.instructions import PromptStep
from cantata.flows.turns.agent_steps import is_one_turn, tools_of
from cantata.flows.wire import ProviderBatchRequest

CREATE, COLLECT, CANCEL = "create", "collect", "cancel"  # `ledger/lib.lua` looks for the first
MAX_RETRIES = 20  # of the creation; before each the provider's batches are searched for that of an earlier attempt
MAX_POLLS = 1000  # of a batch, at most five minutes apart: more than fit into its time
TIMEOUT_S = 300.0  # of an attempt, which sends or reads a file


def fault_of_agent(name: str, definitions: Definitions) -> str | None:
    """Return why batches of a provider cannot answer for an agent; None if they can."""
    agent = definitions.agents[name]
    first = agent.instructions[0]
    if (
        is_one_turn(agent)
        and isinstance(first, str | PromptStep)
        and not tools_of(agent, first)
        and agent.dialect == "native"
    ):
        return None
    return f"agent {name!r} may need several model calls for a row, so it cannot be used in mode 'provider'; leave the mode out"


def plan(request: ProviderBatchRequest, definitions: Definitions) -> Graph:
    """Return the graph of the run."""
    queue, work = definitions.agents[request.agent].queue, f"batches:{request.agent}"
    if request.cancels:
        cancel = Step(
            id=CANCEL, kind="batch.cancel", queue=queue, work=work, retries=MAX_POLLS, timeout_s=TIMEOUT_S, cheap=False
        )
        return Graph(steps=(cancel,), terminals=(CANCEL,))
    create = Step(
        id=CREATE, kind="batch.create", queue=queue, work=work, retries=MAX_RETRIES, timeout_s=TIMEOUT_S, cheap=False
    )
    reads = {"batch": CREATE}
    collect = Step(
        id=COLLECT,
        kind="batch.collect",
        queue=queue,
        work=work,
        reads=reads,
        retries=MAX_POLLS,
        timeout_s=TIMEOUT_S,
        cheap=False,
    )
    return Graph(steps=(create, collect), edges=(Edge(source=CREATE, target=COLLECT),), terminals=(COLLECT,))
