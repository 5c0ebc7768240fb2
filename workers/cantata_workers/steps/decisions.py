"""Steps that only decide or expand: planning, branches, maps, gathers. Any worker executes them in place."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import cast

import structlog

from cantata.engine.fleet import code_versions, registry
from cantata.engine.start import plan_run
from cantata.errors import CantataError, StepError
from cantata.features.webhooks.webhooks import raise_alerts
from cantata.flows.chains import expand
from cantata.flows.chains.declared_inputs import given_to
from cantata.flows.chains.step_ids import END, name_of, split
from cantata.flows.graph import Outcome
from cantata.flows.turns import agent_steps, turn_plan
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.ledger.redis.connection import RedisFailure
from cantata.ledger.runs import alert_counts
from cantata.values import ErrorInfo, JsonValue, stored
from cantata_workers.process.step_context import StepContext, handles, placeholder_values, text_input

EVERY_S = 10.0  # between two looks of a process for the same configuration

log = structlog.get_logger(__name__)
_looked_at: dict[str, float] = {}


@handles("run.start")
def run_start(context: StepContext) -> Outcome:
    """Plan the run."""
    check_code(context)
    return plan_run(context.begun.run_kind, context.begun.inputs["@request"], context.definitions)


@handles("chain.branch")
def chain_branch(context: StepContext) -> Outcome:
    """Take one side of a branch; a side that points back expands to another round of the loop."""
    is_true = context.is_true(context.text_param("condition"))
    side = "true" if is_true else "false"
    loop = cast("dict[str, JsonValue] | None", context.params.get("loop"))
    if loop is None or loop["side"] != side:
        return Outcome(output=is_true, takes=("done", side))
    max_iterations, done = int(cast(int, loop["max_iterations"])), split(context.begun.step_id)[1][-1]
    nodes = _nodes(context, str(loop["chain"]))
    if done >= max_iterations:
        if failure := _failure_before(context, nodes, str(loop["branch"])):
            raise StepError(f"{failure.message} (in the last of {done} rounds)", code=failure.code)
        raise StepError(
            f"the loop ran {done} times, which is its max_iterations, and did not end", code="max_iterations"
        )
    round_again = expand.expand_loop(
        nodes, context.definitions, branch_step_id=context.begun.step_id, spec=context.begun.spec
    )
    return Outcome(output=is_true, fragment=round_again)


def _failure_before(context: StepContext, nodes: Sequence[ChainNode], branch: str) -> ErrorInfo | None:
    """Return the error of the node whose `on_error` led to a branch; None if none did."""
    parent, reader, run_id = split(context.begun.step_id)[0], context.process.ledger.reader, context.begun.run_id
    names = [name_of(node.node_id, parent) for node in nodes if node.on_error == branch]
    steps = reader.records(run_id, reader.answering(run_id, names)) if names else {}
    return next((step.error for step in steps.values() if step.error), None)


def _nodes(context: StepContext, chain: str) -> Sequence[ChainNode]:
    """Return the nodes of a named chain, or of the request itself."""
    if chain:
        return context.definitions.chains[chain].nodes
    return stored(ChainRequest, context.process.ledger.runs.request_of(context.begun.run_id)[1]).nodes


@handles("chain.map")
def chain_map(context: StepContext) -> Outcome:
    """Expand to a step for each item, and a gather."""
    text = context.text_param("items")
    items = context.evaluate(text)
    if items is None:
        return Outcome(
            output=[], warnings=(f"map {context.begun.step_id!r}: {text!r} gave null, so there is nothing to map",)
        )
    if not isinstance(items, list):
        raise StepError(f"{text!r} must give a list to map over, not {_kind_of(items)}", code="not_a_list")
    if not items:
        return Outcome(output=[])
    return Outcome(output=len(items), fragment=expand.expand_map(context.begun.step_id, context.begun.spec, items))


@handles("chain.gather")
def chain_gather(context: StepContext) -> Outcome:
    """Gather a map's results in the order of its items."""
    of, count = context.text_param("of"), context.int_param("items")
    ids = context.process.ledger.reader.answering(context.begun.run_id, [f"{of}/{i}" for i in range(count)])
    texts = context.process.ledger.reader.outputs(context.begun.run_id, ids)
    return Outcome(output=cast(JsonValue, json.loads("[" + ",".join(text or "null" for text in texts) + "]")))


@handles("chain.run")
def chain_run(context: StepContext) -> Outcome:
    """Expand to a nested chain."""
    name = context.text_param("chain")
    chain = context.definitions.chains[name]
    graph = expand.expand_chain(
        chain.nodes, chain.entry_node, context.definitions, parent=context.begun.step_id, chain=name
    )
    return Outcome(output=given_to(name, chain, context.node_input), fragment=graph)


@handles("chain.end")
def chain_end(context: StepContext) -> Outcome:
    """Return the output of a named chain: its one answer, or the output of the one terminal that ran, or an object of several."""
    answers = cast("dict[str, str]", context.params.get("answers") or {})
    given = {name: context.evaluate(text) for name, text in answers.items()} or context.begun.inputs
    ran = {name: value for name, value in given.items() if value is not None}
    if answers and not ran:
        return _last_output(context)
    return Outcome(output=next(iter(ran.values())) if len(ran) == 1 else cast(JsonValue, ran or None))


def _last_output(context: StepContext) -> Outcome:
    """Return the output of the last node that ran, with a warning, since none of those ran that give the answer.

    If one of them gave null, the answer is null. Without any output a turn fails, and a chain in another counts as if it had not run.
    """
    name, parent, run_id = (
        context.text_param("chain"),
        context.begun.step_id.removesuffix(f"/{END}"),
        context.begun.run_id,
    )
    chain = context.definitions.chains[name]
    nodes = [node.node_id for node in chain.nodes if node.kind != "branch" and node.node_id not in chain.dropped]
    reader = context.process.ledger.reader
    ids = reader.answering(run_id, [name_of(node_id, parent) for node_id in nodes])
    done = {
        step_id: step.output
        for step_id, step in reader.records(run_id, ids).items()
        if step.state == "done" and not step.info.get("no_answer")
    }
    outputs = {node_id: done[step_id] for node_id, step_id in zip(nodes, ids, strict=True) if step_id in done}
    if any(node_id in outputs and outputs[node_id] is None for node_id in context.names):
        return Outcome()
    last = next((node_id for node_id in reversed(nodes) if outputs.get(node_id) is not None), None)
    if last is not None:
        warning = f"{name!r}: the steps that give its answer have no output, so the answer is that of {last!r}, the last step that has one"
        return Outcome(output=outputs[last], warnings=(warning,))
    if context.begun.run_kind == "turn" and "/" not in parent:
        raise StepError(f"{name!r} has no answer: none of its steps has an output", code="no_answer")
    return Outcome(detail={"no_answer": True})


@handles("agent.run")
def agent_run(context: StepContext) -> Outcome:
    """Expand to an agent's instructions."""
    name = context.text_param("agent")
    graph = agent_steps.expand_agent(
        name,
        context.definitions,
        parent=context.begun.step_id,
        spec=context.begun.spec,
        filling=placeholder_values(context),
    )
    return Outcome(output=text_input(context), fragment=graph)


@handles("team.run")
def team_run(context: StepContext) -> Outcome:
    """Expand to the steps of a team."""
    name = context.text_param("team")
    return Outcome(
        output=text_input(context),
        fragment=turn_plan.expand_team(name, context.definitions, parent=context.begun.step_id),
    )


def _kind_of(value: JsonValue) -> str:
    names = {dict: "an object", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return f"{names[type(value)]}: {str(value)[:60]!r}"


def check_code(context: StepContext) -> None:
    """Raise the alerts `mixed_code` of a configuration, one of whose runs starts now, if the fleet has been mixed for their time."""
    alerts = [alert for alert in context.definitions.alerts.values() if alert.on == "mixed_code"]
    digest, ledger = context.begun.definitions, context.process.ledger
    if not alerts or time.monotonic() - _looked_at.get(digest, -EVERY_S) < EVERY_S:
        return
    _looked_at[digest] = time.monotonic()
    try:
        mixed = code_versions.describe_served({worker.name: worker.code for worker in registry.workers(ledger.redis)})
        if mixed and alert_counts.lasts(
            ledger, f"{digest[:16]}:mixed_code", within_s=min(alert.within_s for alert in alerts)
        ):
            raise_alerts(
                ledger,
                context.definitions,
                ledger.runs.definitions(context.begun.run_id, digest),
                "mixed_code",
                key=f"{digest}\n{mixed}",
                message="workers serve different versions of a module",
                data={"code": mixed},
            )
    except (CantataError, RedisFailure) as error:  # the run goes on
        log.warning("alert_failed", alert="mixed_code", error=str(error))
