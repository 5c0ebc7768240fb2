"""Steps of an agent: a single model turn, or a sequence of instructions; and the rounds to which a model turn with tools expands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from cantata.flows.definitions import Agent, Definitions, Tool, mcp_tool
from cantata.flows.expressions import templates
from cantata.flows.graph import RAW, Edge, Graph, Spec, Step
from cantata.flows.instructions import AgenticStep, FunctionStep, Instruction, MemoryStep, NestedStep, PromptStep
from cantata.flows.turns.history import MAX_HISTORY_TOKENS
from cantata.flows.workflows.workflow_specs import workflow_spec
from cantata.values import JsonValue

TASK_TIMEOUT_S = 600.0  # of a task for which no time limit is configured
STOP = "stop"
"""The label of the edge from a chainbreaker that ends the sequence."""


def agent_step(
    step_id: str, name: str, agent: Agent, text: str, *, params: Mapping[str, JsonValue] | None = None, **more: object
) -> Step:
    """Return an agent as one step: a model turn, or a decision that expands to its instructions."""
    spec = agent_spec(name, agent, {"@text": text}, params or {})
    return Step.model_validate({**spec.model_dump(), "id": step_id, **more})


def agent_spec(name: str, agent: Agent, reads: Mapping[str, str], params: Mapping[str, JsonValue]) -> Spec:
    """Return the spec of a step that asks an agent. It has no time-out: each model call has its own, and there may be several models.

    The keys of a node's input that are placeholders in the agent's texts fill these; the rest is the agent's input.
    """
    placeholders = _placeholders_in(agent, params)
    if placeholders:
        params = {**params, "placeholders": [*placeholders]}
    if is_one_turn(agent):
        return _turn(name, agent, reads, 0, params)
    return Spec(
        kind="agent.run",
        work=f"agents:{name}",
        reads=dict(reads),
        params={"agent": name, **params},
        decides=True,
        expands=True,
        retries=agent.retries,
    )


def _placeholders_in(agent: Agent, params: Mapping[str, JsonValue]) -> list[str]:
    """Return the keys of a node's input that are placeholders in the agent's texts."""
    keys = {key for part in ("input", "map") for key in cast("dict[str, JsonValue]", params.get(part) or {})} - {
        "input",
        "text",
    }
    return sorted(keys & _names(agent, agent.instructions)) if keys else []


def _names(agent: Agent, instructions: Iterable[Instruction]) -> set[str]:
    """Return the placeholders in an agent's system message and in some of its instructions."""
    return {name for text in (agent.system or "", *map(template, instructions)) for name in templates.names(text)}


def template(instruction: Instruction) -> str:
    """Return the text of an instruction; empty if it has none."""
    match instruction:
        case str():
            return instruction
        case PromptStep():
            return instruction.prompt
        case AgenticStep():
            return instruction.objective
    return ""


def is_one_turn(agent: Agent) -> bool:
    """Return whether an agent is a single model turn, rounds of tool calls aside."""
    first = agent.instructions[0]
    asks_a_model = isinstance(first, str | PromptStep | AgenticStep)
    return (
        len(agent.instructions) == 1
        and asks_a_model
        and not (agent.chainbreakers or agent.store_steps or agent.full_history)
    )


def tools_of(agent: Agent, instruction: Instruction) -> Sequence[str]:
    """Return the names of the tools that a model may call for an instruction."""
    own = instruction.tools if isinstance(instruction, PromptStep | AgenticStep) else None
    return agent.tools if own is None else own


def expand_agent(
    name: str, definitions: Definitions, *, parent: str, spec: Spec, filling: Mapping[str, str] | None = None
) -> Graph:
    """Return the fragment in which an agent follows its instructions in sequence, each with the time-out and retries of the parent.

    `filling` are the values of placeholders in the agent's texts.
    """
    own = {"retries": spec.retries, "timeout_s": spec.timeout_s}
    sequence = _InstructionSequence(name, definitions, parent, own, spec.params.get("history"), filling or {})
    for number in range(len(definitions.agents[name].instructions)):
        sequence.add(number)
    return sequence.graph()


class _InstructionSequence:
    """The instructions of an agent as a sequence of steps, with chainbreakers between them, and an end step if the output has details."""

    def __init__(
        self,
        name: str,
        definitions: Definitions,
        parent: str,
        own: Mapping[str, object],
        history: JsonValue,
        filling: Mapping[str, str],
    ) -> None:
        self._name = name
        self._definitions = definitions
        self._agent = definitions.agents[name]
        self._parent = parent
        self._own = own
        self._history = history
        self._filling = filling
        self._steps: list[Step] = []
        self._edges: list[Edge] = []
        self._text = f"{RAW}{parent}"
        self._done: list[str] = []
        self._breaks: list[str] = []

    def add(self, number: int) -> None:
        """Add the step of an instruction, and that of the chainbreakers behind it."""
        step_id = f"{self._parent}/@{number + 1}"
        self._append(step_id, self._spec(number))
        self._done.append(step_id)
        if self._agent.chainbreakers:
            reads = {"@text": step_id, "@input": self._text}
            self._append(f"{step_id}!", self._function("agent.break", f"breakers:{self._name}", number, reads))
            self._breaks.append(f"{step_id}!")
        self._text = self._steps[-1].id

    def graph(self) -> Graph:
        """Return the graph of the sequence, with its exit."""
        agent = self._agent
        if agent.chainbreakers or agent.store_steps or agent.full_history:
            params: dict[str, JsonValue] = {
                "agent": self._name,
                "done": [*self._done],
                "ends": [*(self._breaks or self._done)],
            }
            spec = Spec(
                kind="agent.end",
                work=f"agents:{self._name}",
                reads={"@text": f"{RAW}{self._parent}"},
                params=params,
                decides=True,
            )
            self._append(f"{self._parent}/@end", spec)
            self._edges += [Edge(source=each, target=self._steps[-1].id, label=STOP) for each in self._breaks]
        return Graph(steps=tuple(self._steps), edges=tuple(self._edges), exit=self._steps[-1].id)

    def _append(self, step_id: str, spec: Spec) -> None:
        if self._steps:
            self._edges.append(Edge(source=self._steps[-1].id, target=step_id))
        self._steps.append(Step(id=step_id, **dict(spec)))

    def _spec(self, number: int) -> Spec:
        instruction, reads = self._agent.instructions[number], {"@text": self._text}
        if isinstance(instruction, FunctionStep):
            return self._function("agent.function", f"functions:{instruction.function}", number, reads)
        if isinstance(instruction, MemoryStep):
            params: dict[str, JsonValue] = {"namespace": instruction.memory}
            return Spec(
                kind="agent.memory", work=f"memory:{instruction.memory}", reads=reads, params=params, decides=True
            )
        if isinstance(instruction, NestedStep):
            return self._nested(instruction)
        seen: dict[str, JsonValue] = {"history": self._history} if self._history else {}
        self._history = None  # only the first model call sees the conversation
        reads = {**reads, **self._earlier(instruction)}
        return _turn(self._name, self._agent, reads, number, {**self._filled(instruction), **seen}).model_copy(
            update=dict(self._own)
        )

    def _filled(self, instruction: Instruction) -> dict[str, JsonValue]:
        """Return the placeholders in the prompt of an instruction and their values, as parameters of its step."""
        shown = (
            self._agent.instructions
            if self._agent.full_history or isinstance(instruction, AgenticStep)
            else [instruction]
        )
        named = _names(self._agent, shown)
        values: dict[str, JsonValue] = {key: text for key, text in self._filling.items() if key in named}
        return {"placeholders": [*sorted(values)], "input": values} if values else {}

    def _earlier(self, instruction: Instruction) -> dict[str, str]:
        """Return the reads of the sequence's input and the outputs so far, if the model sees them."""
        if not (
            self._agent.full_history
            or (isinstance(instruction, AgenticStep) and instruction.history_mode == "kitchen_sink")
        ):
            return {}
        return {
            "@first": f"{RAW}{self._parent}",
            **{f"@earlier/{number}": done for number, done in enumerate(self._done)},
        }

    def _function(self, kind: str, work: str, number: int, reads: Mapping[str, str]) -> Spec:
        params: dict[str, JsonValue] = {"agent": self._name, "turn": number}
        return Spec(
            kind=kind, queue="tools", work=work, reads=dict(reads), params=params, timeout_s=self._agent.timeout_s
        )

    def _nested(self, instruction: NestedStep) -> Spec:
        if instruction.agent is not None:
            agent = self._definitions.agents[instruction.agent]
            return agent_spec(instruction.agent, agent, {"@text": self._text}, history_seen(agent))
        mapped: JsonValue = {"input": "text"}
        params: dict[str, JsonValue] = {"chain": instruction.chain, "map": mapped}
        work = f"chains:{instruction.chain}"
        return Spec(kind="chain.run", work=work, reads={"text": self._text}, params=params, decides=True, expands=True)


def _turn(
    name: str, agent: Agent, reads: Mapping[str, str], turn: int, params: Mapping[str, JsonValue] | None = None
) -> Spec:
    """Return the spec of a model turn for one instruction; it expands if its model may call tools, or may be asked again."""
    instruction = agent.instructions[turn]
    asked_again = isinstance(instruction, AgenticStep) or (
        agent.output is not None and turn == len(agent.instructions) - 1
    )
    return Spec(
        kind="agent.turn",
        queue=agent.queue,
        work=f"agents:{name}",
        reads=dict(reads),
        params={"agent": name, "turn": turn, **(params or {})},
        retries=agent.retries,
        cheap=False,
        expands=bool(tools_of(agent, instruction)) or agent.dialect == "json" or asked_again,
    )


def next_round(begun: str, spec: Spec, number: int, calls: Sequence[Step], *, given: JsonValue = None) -> Graph:
    """Return the fragment of a model's round: the calls that it asked for, and behind them the next round, which answers in its place.

    `number` is that of the next round; the first round of an instruction has none. `given` is the parent's own value, such as a map item.
    """
    base = begun.rpartition("/r")[0] if number > 1 else begun
    turn_id = f"{base}/r{number}"
    params = {**spec.params, "round": number, "base": base}
    turn = Step(**{**dict(spec), "id": turn_id, "params": params, "given": given})
    edges = tuple(Edge(source=call.id, target=turn_id) for call in calls)
    return Graph(steps=(*calls, turn), edges=edges, exit=turn_id)


def is_workflow(name: str, definitions: Definitions) -> bool:
    """Return whether a tool's name is that of a workflow in Python, and of no tool."""
    return name in definitions.workflows and name not in definitions.tools


def tool_step(step_id: str, name: str, arguments: Mapping[str, JsonValue], definitions: Definitions) -> Step:
    """Return the step of a tool call that a model asked for. The model gets a failure as the result, so it does not fail the agent."""
    if is_workflow(name, definitions):
        given: dict[str, JsonValue] = {"input": dict(arguments), "failure": ""}
        return Step(id=step_id, **dict(workflow_spec(name, definitions, given, on_error="skip")))
    server, method = mcp_tool(name, definitions.tools) or (name, "")
    tool = definitions.tools[server]
    params: dict[str, JsonValue] = {
        "section": "tools",
        "tool": server,
        "input": dict(arguments),
        "asked_by": "model",
        "failure": "",
    }
    if method:
        params["method"] = method
    if tool.asks:
        params |= {"asks": dict(arguments), **tool.wait_params()}
    return Step(
        id=step_id,
        kind=tool.step_kind(method),
        work=f"tools:{name}",
        params=params,
        retries=0 if tool.at_most_once else tool.retries,
        on_error="skip",
        **tool_fields(tool),
    )


def tool_fields(tool: Tool, *, timeout_s: float | None = None) -> dict[str, Any]:
    """Return the fields of a step that are the same in every call of a tool; `timeout_s` replaces the tool's own, if it is given."""
    fields: dict[str, Any] = {
        "queue": tool.step_queue, "timeout_s": timeout_s or tool.timeout_s, "cheap": tool.cheap, "at_most_once": tool.at_most_once,
        "pure": tool.pure,
    }  # fmt: skip
    if tool.task:  # the step only sends it, and what follows waits for its end
        timeout_s = fields["timeout_s"] or TASK_TIMEOUT_S
        return {**fields, "timeout_s": timeout_s, "heartbeat_s": tool.heartbeat_s, "cheap": True, "expands": True}
    return fields


_NUMBER_BEHIND = re.compile(r"\.[0-9]+\Z")


class MemberSteps(NamedTuple):
    """The steps of one agent in sequence; the last one has the requested id."""

    steps: tuple[Step, ...]

    @property
    def first(self) -> str:
        """Return the id of the first step, the target of edges to the agent."""
        return self.steps[0].id

    @property
    def last(self) -> str:
        """Return the id of the step whose output is the answer."""
        return self.steps[-1].id

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Return the edges between the steps."""
        return chain_edges([step.id for step in self.steps])


def member(
    step_id: str,
    name: str,
    definitions: Definitions,
    text: str,
    *,
    team: str | None = None,
    is_chosen: bool = False,
    send_history: bool = False,
    params: Mapping[str, JsonValue] | None = None,
    **more: object,
) -> MemberSteps:
    """Return the steps of an agent that answers a text, with the conversation of the turn's session, if there is one.

    With `send_history`, or if its team is configured so, the conversation comes before its input as text. Else, if the agent `is_chosen` or
    its own settings ask for it, its model gets the conversation as messages.
    """
    agent, of_team = definitions.agents[name], definitions.teams[team] if team else None
    max_tokens = agent.history.max_tokens or (of_team.max_history_tokens if of_team else MAX_HISTORY_TOKENS)
    if send_history or (of_team and of_team.auto_include_history and agent.history.enabled is not False):
        block = Step(
            id=f"{step_id}/@asked",
            kind="history.block",
            work=f"history:{name}",
            reads={"@text": text},
            params={**(params or {}), "agent": name, "history": max_tokens},
            decides=True,
        )
        return MemberSteps((block, agent_step(step_id, name, agent, block.id, params=params, **more)))
    wants = is_chosen if agent.history.enabled is None else agent.history.enabled
    seen = {"history": max_tokens} if wants else {}
    return MemberSteps((agent_step(step_id, name, agent, text, params={**seen, **(params or {})}, **more),))


def history_seen(agent: Agent) -> dict[str, JsonValue]:
    """Return the parameter of an agent that sees the conversation in chains and within other agents, by its own settings."""
    return {"history": agent.history.max_tokens or MAX_HISTORY_TOKENS} if agent.history.enabled else {}


def chain_edges(ids: list[str]) -> tuple[Edge, ...]:
    """Return the edges of a sequence of steps."""
    return tuple(Edge(source=source, target=target) for source, target in pairwise(ids))


def numbered(name: str, number: int, *, is_alone: bool) -> str:
    """Return a name with its number, or without one if it is unique. A name that ends in `.2` always gets one: it may be an agent's own."""
    return name if is_alone and not _NUMBER_BEHIND.search(name) else f"{name}.{number}"
