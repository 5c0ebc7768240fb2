"""Conversations that agents hand over to each other, and conductors that choose the next agent. Each step expands to the one behind it.

    @open ──▶ 1.conductor ─┬─ rules ── a rule holds ────────────────▶ 2.agent ──▶ ask ──▶ read ─┬─ a correction, a step ──▶ ask ...
                           ├─ ask ──▶ read ── the model chose ──────▶ 2.agent                    └─ final ──▶ 3.conductor ...
                           ├─ judged: a predicate agent decides whether it is done
                           ├─ finalize: the result, from the long-term memory or by a finalizer agent
                           └─ fail: nobody was chosen, or a bound is reached

Each arrow is an expansion, and the last step takes the place of the first: its output is the answer. A step's output is the state of the
conversation (long-term memory, the current agent's arguments, counts) with the messages of that step alone. It names the steps that hold
the earlier messages. So a worker may die between any two steps, and nothing is stored twice.

A turn is one agent's work with the conversation; its steps are named after it: `2.agent`, `2.agent/ask.1`, `2.agent/read.1`. Steps that run
code of the folder are executed by tools workers, model calls by agents workers. A reply is recorded (`ask`) before it is read (`read`), so
a model is not asked twice for the same reply. Invalid replies (trials) and valid replies that are not final (reasoning steps) are counted
separately, in the parameters of the steps. Rounds of tool calls expand within `ask`, as for every agent, and count for neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from cantata.flows.definitions import Extension
from cantata.flows.graph import RAW, Edge, Graph, Step
from cantata.flows.step_kinds import StepKind
from cantata.values import JsonValue
from cantata_frontends.diskurs.conversation_config import AgentKind, ConversationConfig

RETRIES = 3
"""Retries of a model call, for failures that may pass."""

ENTRIES: Mapping[AgentKind, str] = {
    "conductor": "diskurs.visit",
    "multistep": "diskurs.begin",
    "multistep_predicate": "diskurs.begin",
    "multistep_finalizer": "diskurs.begin",
    "parallel_multistep": "diskurs.begin",
    "heuristic": "diskurs.heuristic",
    "heuristic_finalizer": "diskurs.heuristic",
    "llm_compiler": "diskurs.begin",
}
"""Kind of agent → the kind of the first step of its turn."""

STEP_KINDS = (
    StepKind("diskurs.open"),
    StepKind("diskurs.visit"),
    StepKind("diskurs.rules"),
    StepKind("diskurs.begin"),
    StepKind("diskurs.ask", "turn", ends_with_round=True),
    StepKind("diskurs.read"),
    StepKind("diskurs.tool", "function"),
    StepKind("diskurs.gather"),
    StepKind("diskurs.heuristic", "agent"),
    StepKind("diskurs.branch"),
    StepKind("diskurs.join"),
    StepKind("diskurs.finalize"),
    StepKind("diskurs.fail"),
)


def extension_of(config: ConversationConfig) -> Extension:
    """Return the configuration as definitions carry it. The step that answers a turn initialises the long-term memory."""
    settings = config.model_dump(mode="json", exclude_defaults=True)
    return Extension(
        kind="diskurs.open", agents=list(config.agents), first_agent=config.first_contact, settings=settings
    )


@dataclass(frozen=True)
class AgentTurn:
    """One turn of an agent in the conversation, and the purpose of the turn."""

    agent: str
    number: int
    base: str
    """The id of its first step."""
    part: str = ""
    """Of a parallel agent: `branch` for one of the branches, `joined` for the model call after the join."""
    judges: str = ""
    """Of a predicate agent: the conductor that asks whether the conversation is done."""
    trial: int = 1
    step: int = 1
    asked: int = 1
    """The number of the model call within this turn, from 1."""

    @classmethod
    def of(cls, params: Mapping[str, JsonValue]) -> AgentTurn:
        """Return the turn that a step belongs to, from the step's parameters."""
        return cls(**cast("dict[str, Any]", params["turn"]))

    @property
    def params(self) -> dict[str, JsonValue]:
        """Return the turn as parameters of a step."""
        return {"turn": asdict(self)}


def hand_over(agent: str, config: ConversationConfig, *, number: int, before: str, judges: str = "") -> Graph:
    """Hand the conversation over to an agent, in the state after the step `before`."""
    turn = AgentTurn(agent, number, f"{number}.{agent}", judges=judges)
    return _only(_behind(ENTRIES[config.agents[agent].kind], turn.base, turn, before))


def ask(turn: AgentTurn, config: ConversationConfig, *, before: str) -> Graph:
    """Ask the agent's model about the conversation, in the state after the step `before`, and read its reply."""
    agent = config.agents[turn.agent]
    reads = {"@conversation": f"{RAW}{before}", "@turn_start": f"{RAW}{turn.base}"}
    work = f"{'conductors' if agent.kind == 'conductor' else 'agents'}:{turn.agent}"
    asking = Step(
        id=f"{turn.base}/ask.{turn.asked}",
        kind="diskurs.ask",
        queue="agents",
        work=work,
        reads=reads,
        params=turn.params,
        retries=RETRIES,
        cheap=False,
        expands=bool(agent.tools),
    )
    reading = _code(
        "diskurs.read",
        f"{turn.base}/read.{turn.asked}",
        {**reads, "@reply": asking.id},
        turn.params,
        work=f"diskurs:{turn.agent}",
    )
    return Graph(steps=(asking, reading), edges=(Edge(source=asking.id, target=reading.id),), exit=reading.id)


def ask_again(turn: AgentTurn, config: ConversationConfig, *, before: str, is_valid: bool) -> Graph | None:
    """Return the next model call of a turn: after a valid reply the next reasoning step, else the next trial; None past the limit."""
    agent = config.agents[turn.agent]
    max_steps = agent.max_trials if agent.kind == "conductor" else agent.max_reasoning_steps
    step, trial = (turn.step + 1, 1) if is_valid else (turn.step, turn.trial + 1)
    following = replace(turn, asked=turn.asked + 1, step=step, trial=trial)
    if following.step > max_steps or following.trial > agent.max_trials:
        return None
    return ask(following, config, before=before)


def ask_rules(turn: AgentTurn, *, before: str) -> Graph:
    """Evaluate a conductor's rules."""
    return _only(_behind("diskurs.rules", f"{turn.base}/rules", turn, before))


def return_verdict(turn: AgentTurn, conductor: str, *, before: str) -> Graph:
    """Return to a conductor with the verdict of its predicate agent."""
    return _only(
        _behind("diskurs.visit", f"{turn.base}/judged", replace(turn, agent=conductor, judges=""), before, judged=True)
    )


def finalize(turn: AgentTurn, *, before: str) -> Graph:
    """Let a conductor's code build the result."""
    return _only(_behind("diskurs.finalize", f"{turn.base}/finalize", turn, before, expands=False))


def fail(turn: AgentTurn, conductor: str, *, before: str, code: str, reason: str) -> Graph:
    """Fail the conversation; a conductor's code builds the last output."""
    turn = replace(turn, agent=conductor)
    return _only(_behind("diskurs.fail", f"{turn.base}/fail", turn, before, expands=False, code=code, reason=reason))


def run_branches(turn: AgentTurn, *, before: str, count: int) -> Graph:
    """Run the branches of a parallel agent's turn in parallel, and join them."""
    parts = [
        _behind(
            "diskurs.begin",
            f"{turn.base}/branch.{i}",
            replace(turn, base=f"{turn.base}/branch.{i}", part="branch"),
            before,
            branch=i,
        )
        for i in range(count)
    ]
    reads = {f"@branch/{i}": part.id for i, part in enumerate(parts)}
    join = _behind("diskurs.join", f"{turn.base}/join", turn, before, count=count)
    join = join.model_copy(update={"reads": {**join.reads, **reads}})
    edges = tuple(Edge(source=part.id, target=join.id) for part in parts)
    return Graph(steps=(*parts, join), edges=edges, exit=join.id)


def split(turn: AgentTurn, *, before: str) -> Graph:
    """Let a parallel agent's code split the conversation into branches."""
    return _only(_behind("diskurs.branch", f"{turn.base}/branches", turn, before))


def ask_after_join(turn: AgentTurn, *, before: str) -> Graph:
    """Ask a parallel agent's model once more, about the joined conversation."""
    base = f"{turn.base}/joined"
    return _only(
        _behind("diskurs.begin", base, replace(turn, base=base, part="joined", trial=1, step=1, asked=1), before)
    )


def run_plan(turn: AgentTurn, plan: Sequence[Mapping[str, JsonValue]], *, before: str) -> Graph:
    """Run the steps of a plan in the order of their dependencies; behind them, a step reports their results to the model.

    Each step is {step_id, function, parameters, depends_on}. Dependencies are among the steps and form no cycle.
    """
    prefix = f"{turn.base}/plan.{turn.asked}"
    steps, edges = [], []
    for each in plan:
        step_id = f"{prefix}/{each['step_id']}"
        needs = {str(name): f"{prefix}/{name}" for name in cast("list[str]", each["depends_on"])}
        call: dict[str, JsonValue] = {"tool": each["function"], "parameters": each["parameters"], "needs": {**needs}}
        made = _code("diskurs.tool", step_id, {}, call, work=f"tools:{each['function']}", expands=False)
        steps.append(made.model_copy(update={"on_error": "skip"}))
        edges += [Edge(source=needed, target=step_id) for needed in needs.values()]
    gather = _behind("diskurs.gather", prefix, turn, before)
    edges += [Edge(source=step.id, target=gather.id) for step in steps]
    return Graph(steps=(*steps, gather), edges=tuple(edges), exit=gather.id)


def tool_step(step_id: str, name: str, arguments: Mapping[str, JsonValue]) -> Step:
    """Return the step of a tool call that a model asked for. The model gets a failure as the result, so it does not fail the agent."""
    call: dict[str, JsonValue] = {"tool": name, "parameters": dict(arguments)}
    return _code("diskurs.tool", step_id, {}, call, work=f"tools:{name}", expands=False).model_copy(
        update={"on_error": "skip"}
    )


# --- steps ----------------------------------------------------------------------------------------------------------


def _behind(kind: str, step_id: str, turn: AgentTurn, before: str, *, expands: bool = True, **more: JsonValue) -> Step:
    """Return a step of a turn that reads only the state of the conversation."""
    return _code(
        kind,
        step_id,
        {"@conversation": f"{RAW}{before}"},
        {**turn.params, **more},
        work=f"diskurs:{turn.agent}",
        expands=expands,
    )


def _code(
    kind: str,
    step_id: str,
    reads: Mapping[str, str],
    params: Mapping[str, JsonValue],
    *,
    work: str,
    expands: bool = True,
) -> Step:
    """Return a step that runs code of the configuration's folder."""
    return Step(
        id=step_id, kind=kind, queue="tools", work=work, reads=dict(reads), params=dict(params), expands=expands
    )


def _only(step: Step) -> Graph:
    return Graph(steps=(step,), exit=step.id)
