"""A round of a model within an agent's instruction: the rounds before it, the tools it may call, and the messages it receives."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from cantata.errors import StepError
from cantata.flows.definitions import Agent, Model, Tool, mcp_tool
from cantata.flows.expressions import templates
from cantata.flows.instructions import AgenticStep, FunctionStep, MemoryStep, NestedStep, PromptStep
from cantata.flows.turns import history
from cantata.flows.turns.agent_steps import is_workflow, template, tools_of
from cantata.flows.wire import HistoryEntry
from cantata.values import JsonValue, ToolSchema, as_text
from cantata_workers.models.dialects.conversation import Message, ModelRound, ToolResult, conversation
from cantata_workers.models.llm.openai_messages import ANSWER
from cantata_workers.process.step_context import StepContext, placeholder_values, text_input
from cantata_workers.steps import session_history
from cantata_workers.steps.structured_output import AnswerValidator
from cantata_workers.tools import functions, mcp, memory_access, schemas
from cantata_workers.tools.celery_tasks import task_calls

OBJECTIVE = (
    "Your objective: {objective}\n\nWork towards it step by step, with the tools you have if they help. "
    "When it is reached, answer without calling a tool: that answer is what you are judged by."
)
JSON_TOOLS = (
    'To call a tool, reply with a JSON object only: {"response": "what you are about to do", '
    '"mcp": {"tool": "name", "method": "", "params": {...}}}. To answer, reply without "mcp". The tools:'
)


@dataclass(frozen=True)
class ModelTurn:
    """A round of a model to be executed, and the rounds of its instruction before."""

    context: StepContext
    rounds: tuple[ModelRound, ...]
    answers: tuple[tuple[ToolResult, ...], ...]
    memory: Mapping[str, str | None] = field(default_factory=dict)
    """The memories that placeholders of its templates name, as they were in the first round."""
    session_entries: Sequence[HistoryEntry] = ()
    """The entries of the session's conversation that its model sees."""

    @classmethod
    def read(cls, context: StepContext) -> ModelTurn:
        """Read the rounds before this one from the ledger."""
        base, number = str(context.params.get("base") or context.begun.step_id), context.int_param("round")
        run_id, recent, reader = context.begun.run_id, context.process.recent_outcomes, context.process.ledger.reader
        ids = [base if i == 0 else f"{base}/r{i}" for i in range(number)]
        rounds = tuple(ModelRound.read(text, info) for text, info in recent.of(run_id, ids))
        calls = [f"{step_id}/t{i}" for step_id, done in zip(ids, rounds, strict=True) for i in range(len(done.calls))]
        expands = any(is_workflow(call.name, context.definitions) for done in rounds for call in done.calls)
        answering = reader.answering(run_id, calls) if expands else calls
        results = dict(zip(calls, (_result_of(*ended) for ended in recent.of(run_id, answering)), strict=True))
        answers = tuple(
            tuple(results[f"{step_id}/t{i}"] for i in range(len(done.calls)))
            for step_id, done in zip(ids, rounds, strict=True)
        )
        turn = cls(context, rounds, answers)
        memory = rounds[0].memory if rounds else memory_access.recall(context, turn._templates())
        return replace(turn, memory=memory, session_entries=session_history.visible_to_agent(context))

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.context.text_param("agent")

    @cached_property
    def agent(self) -> Agent:
        """The agent's definition."""
        return self.context.definitions.agents[self.name]

    @cached_property
    def number(self) -> int:
        """The number of the instruction, from 0."""
        return self.context.int_param("turn")

    @cached_property
    def instruction(self) -> str | PromptStep | AgenticStep:
        """The instruction that the model executes."""
        instruction = self.agent.instructions[self.number]
        assert not isinstance(instruction, FunctionStep | MemoryStep | NestedStep)
        return instruction

    @property
    def is_streamed(self) -> bool:
        """Return whether the reply is published while it comes.

        A streamed call takes three times the processor time, so chains do without.
        """
        return self.context.begun.run_kind == "turn" if self.agent.stream is None else self.agent.stream

    # --- limits -----------------------------------------------------------------------------------------------------

    @property
    def max_tool_rounds(self) -> int:
        """The number of rounds in which the model may call tools."""
        return (
            self.instruction.max_tool_rounds
            if isinstance(self.instruction, AgenticStep)
            else self.agent.max_tool_rounds
        )

    @property
    def max_steps(self) -> int:
        """The number of empty replies that the model may give."""
        return self.instruction.max_internal_steps if isinstance(self.instruction, AgenticStep) else 1

    def count(self, kind: str) -> int:
        """Return the number of rounds of a kind so far."""
        return sum(each.kind == kind for each in self.rounds)

    @property
    def is_closing(self) -> bool:
        """Return whether the model must answer now, because its rounds or steps are used up."""
        return self.count("calls") >= self.max_tool_rounds or self.count("nudge") >= self.max_steps

    # --- the request ------------------------------------------------------------------------------------------------

    def models(self) -> list[Model]:
        """Return the model to call, and its fallbacks."""
        definitions, agent, instruction = self.context.definitions, self.agent, self.instruction
        params: Mapping[str, JsonValue] = {}
        named: str | Model | None = None
        if isinstance(instruction, AgenticStep):
            params, named = instruction.model_params, instruction.model_name
        if named is None and agent.models:
            texts = sum(isinstance(each, str | PromptStep) for each in agent.instructions[: self.number])
            named = agent.models[texts if len(agent.models) > 1 and not isinstance(instruction, AgenticStep) else 0]
        first = named if isinstance(named, Model) else definitions.model_of(named or agent.model)
        examples: list[JsonValue] = [{"text": example.input, "label": example.output} for example in agent.examples]
        own = {**agent.params, **params, **({"examples": examples} if examples else {})}
        return [
            model.model_copy(update={"params": {**model.params, **own}}) for model in definitions.with_fallbacks(first)
        ]

    def tools(self) -> tuple[ToolSchema, ...]:
        """Return the schemas of the tools that the model may call."""
        known = self.context.definitions.tools
        folder = self.context.folder
        found: list[ToolSchema] = []
        for name in tools_of(self.agent, self.instruction):
            if is_workflow(name, self.context.definitions):
                found.append(_workflow_schema(name, self.context))
                continue
            server, method = mcp_tool(name, known) or (name, "*")
            tool = known[server]
            if tool.mcp is None:
                found.append(_function_schema(name, tool, folder))
                continue
            listed = self.context.wait_for(mcp.list_tools(server, tool.mcp, folder=folder))
            wanted = [each for each in listed if method in ("*", each.name)]
            if not (wanted or unreadable_tools(self)):
                raise StepError(f"MCP server {server!r} has no tool {method!r}", code="unknown_tool")
            found += [each.model_copy(update={"name": f"{server}.{each.name}"}) for each in wanted]
        return tuple({tool.name: tool for tool in found}.values())

    def _templates(self) -> list[str]:
        """Return the texts whose placeholders may name memories."""
        earlier = self.agent.instructions[: self.number] if "@first" in self.context.begun.inputs else []
        return [self.agent.system or "", *map(template, [*earlier, self.instruction])]

    @cached_property
    def _placeholders(self) -> dict[str, str]:
        return {**{name: text or "" for name, text in self.memory.items()}, **placeholder_values(self.context)}

    @cached_property
    def _prompt(self) -> tuple[str, bool]:
        return _prompt_of(self.instruction, text_input(self.context), self._placeholders)

    @property
    def uses_input(self) -> bool:
        """Return whether the instruction has a placeholder for its input."""
        return self._prompt[1]

    def messages(self, known: Sequence[ToolSchema]) -> list[Message]:
        """Return the messages of the request, for a model that may call the `known` tools."""
        system = [templates.fill(self.agent.system or "", self._placeholders)]
        mode = "minimal"
        if isinstance(self.instruction, AgenticStep):
            mode = self.instruction.history_mode
            system.append(
                templates.fill(OBJECTIVE, {"objective": templates.fill(self.instruction.objective, self._placeholders)})
            )
        if self.agent.dialect == "json" and known and not self.is_closing:
            system.append("\n".join([JSON_TOOLS, *(_tool_line(tool) for tool in known)]))
        if self.validator and known:  # not every provider takes tools and a schema at once
            system.append(f"{ANSWER}\n{_json(self.validator.schema)}")
        system_text = "\n\n".join(part for part in system if part)
        base: list[Message] = [{"role": "system", "content": system_text}] if system_text else []
        first, *rest = [*self._earlier(), {"role": "user", "content": self._prompt[0]}]
        base += [*history.as_messages(self.session_entries, str(first["content"])), *rest]
        return conversation(base, self.rounds, self.answers, mode=mode)  # type: ignore[arg-type]  # one of the three

    def _earlier(self) -> list[Message]:
        """Return the agent's earlier instructions and their outputs as messages, if the agent is configured to show them."""
        inputs = self.context.begun.inputs
        if "@first" not in inputs:
            return []
        messages: list[Message] = []
        before = inputs["@first"]
        for number, instruction in enumerate(self.agent.instructions[: self.number]):
            output = inputs[f"@earlier/{number}"]
            if not isinstance(instruction, FunctionStep | MemoryStep | NestedStep):
                prompt, _ = _prompt_of(instruction, as_text(before), self._placeholders)
                messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": as_text(output)}]
            before = output
        return messages

    # --- the answer -------------------------------------------------------------------------------------------------

    @cached_property
    def validator(self) -> AnswerValidator | None:
        """The validator of the answer; None if this is not the agent's last instruction, or the agent has no output schema."""
        output, is_last = self.agent.output, self.number == len(self.agent.instructions) - 1
        return AnswerValidator(output, self.name, self.context.folder) if output and is_last else None


def unreadable_tools(turn: ModelTurn) -> Mapping[str, str]:
    """Return the tools that the model may not call, since MCP servers list them in a form that is none → why."""
    known, found = turn.context.definitions.tools, dict[str, str]()
    for name in tools_of(turn.agent, turn.instruction):
        server, method = mcp_tool(name, known) or (name, "*")
        if server in known and (mcp_server := known[server].mcp):
            unreadable = turn.context.wait_for(mcp.unreadable_tools(server, mcp_server, folder=turn.context.folder))
            found |= {f"{server}.{each}": why for each, why in unreadable.items() if method in ("*", each)}
    return found


def _function_schema(name: str, tool: Tool, folder: str | None) -> ToolSchema:
    """Return the schema of a function: from the configuration, else from its signature."""
    if tool.parameters is not None:
        return ToolSchema(name=name, description=tool.description, parameters=tool.parameters)
    if tool.task is not None:
        return task_calls.schema_of(name, tool)
    return schemas.schema_of(functions.load(str(tool.function), folder), tool, name)


def _workflow_schema(name: str, context: StepContext) -> ToolSchema:
    """Return the schema of a workflow from its function's signature, without the parameter that is the Workflow."""
    function = functions.load(context.definitions.workflows[name].function, context.folder)
    first = next(iter(inspect.signature(function).parameters), "")
    return schemas.schema_of(
        function, Tool(function=context.definitions.workflows[name].function, values={first: None}), name
    )


def _result_of(output: str | None, info: Mapping[str, JsonValue]) -> ToolResult:
    error = cast("dict[str, str] | None", info.get("error"))
    if error:
        return ToolResult(error=error["message"])
    return ToolResult(value=json.loads(output) if output else None)


def _prompt_of(
    instruction: str | PromptStep | AgenticStep, text: str, placeholders: Mapping[str, str]
) -> tuple[str, bool]:
    """Return the prompt of an instruction for its input, and whether it uses the input."""
    if isinstance(instruction, AgenticStep):
        return text, True
    return templates.instruct(template(instruction), text, placeholders)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tool_line(tool: ToolSchema) -> str:
    return f"- {tool.name}: {tool.description or 'no description'} params: {_json(tool.parameters)}"
