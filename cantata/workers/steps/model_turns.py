"""One turn of a model within an agent's instruction: what it was told before, what it may call, what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from cantata.errors import StepError
from cantata.models.definitions import Agent, Model, Tool, mcp_tool
from cantata.models.instructions import AgenticStep, FunctionStep, MemoryStep, NestedStep, PromptStep
from cantata.models.values import JsonValue, ToolSchema
from cantata.models.wire import HistoryEntry
from cantata.planning import templates
from cantata.planning.turns import history
from cantata.planning.turns.agent_steps import template, tools_of
from cantata.workers.code.config_folder import local_folder
from cantata.workers.models.dialects.conversation import Message, conversation
from cantata.workers.models.dialects.rounds import ModelRound, ToolResult
from cantata.workers.runtime.step_context import StepContext, placeholder_values, text_input
from cantata.workers.steps import session_history
from cantata.workers.steps.structured_output import AnswerValidator
from cantata.workers.tools import functions, mcp, memory_access, schemas

OBJECTIVE = (
    "Your objective: {objective}\n\nWork towards it step by step, with the tools you have if they help. "
    "When it is reached, answer without calling a tool: that answer is what you are judged by."
)
ANSWER = "Your answer is JSON, and nothing else, that fits this JSON schema:"
JSON_TOOLS = (
    'To call a tool, reply with a JSON object only: {"response": "what you are about to do", '
    '"mcp": {"tool": "name", "method": "", "params": {...}}}. To answer, reply without "mcp". The tools:'
)


@dataclass(frozen=True)
class ModelTurn:
    """A model turn, and the rounds of its instruction so far."""

    context: StepContext
    rounds: tuple[ModelRound, ...]
    answers: tuple[tuple[ToolResult, ...], ...]
    memory: Mapping[str, str | None] = field(default_factory=dict)
    """What the placeholders of its templates name, as it was in the first round."""
    said_before: Sequence[HistoryEntry] = ()
    """What its model is told of the session's conversation."""

    @classmethod
    def read(cls, context: StepContext) -> ModelTurn:
        """What the ledger knows of the rounds before this turn."""
        base, number = str(context.params.get("base") or context.begun.step_id), int(cast(int, context.params.get("round", 0)))
        ledger, run_id = context.process.ledger, context.begun.run_id
        ids = [base if i == 0 else f"{base}/r{i}" for i in range(number)]
        rounds = tuple(ModelRound.from_json(json.loads(text)) for text in ledger.reader.outputs(run_id, ids) if text)
        calls = [f"{step_id}/t{i}" for step_id, done in zip(ids, rounds, strict=True) for i in range(len(done.calls))]
        came = (
            dict(zip(calls, map(_answer, ledger.reader.outputs(run_id, calls), ledger.reader.infos(run_id, calls)), strict=True))
            if calls
            else {}
        )
        answers = tuple(tuple(came[f"{step_id}/t{i}"] for i in range(len(done.calls))) for step_id, done in zip(ids, rounds, strict=True))
        turn = cls(context, rounds, answers)
        memory = rounds[0].memory if rounds else memory_access.recall(context, turn._templates())
        return replace(turn, memory=memory, said_before=session_history.shown_to_agent(context))

    @property
    def name(self) -> str:
        """The agent's."""
        return self.context.text_param("agent")

    @cached_property
    def agent(self) -> Agent:
        """Who asks."""
        return self.context.definitions.agents[self.name]

    @cached_property
    def number(self) -> int:
        """Of the instruction, from 0."""
        return int(cast(int, self.context.params.get("turn", 0)))

    @cached_property
    def instruction(self) -> str | PromptStep | AgenticStep:
        """What is asked for."""
        instruction = self.agent.instructions[self.number]
        assert not isinstance(instruction, FunctionStep | MemoryStep | NestedStep)
        return instruction

    @property
    def is_last(self) -> bool:
        """Whether what it gives is the agent's answer."""
        return self.number == len(self.agent.instructions) - 1

    @property
    def is_streamed(self) -> bool:
        """Whether events tell of a reply while it comes. A streamed call takes three times the processor time, so chains go without."""
        return self.context.begun.run_kind == "turn" if self.agent.stream is None else self.agent.stream

    # --- bounds -----------------------------------------------------------------------------------------------------

    @property
    def most_tool_rounds(self) -> int:
        """How often its model may call tools."""
        return self.instruction.max_tool_rounds if isinstance(self.instruction, AgenticStep) else self.agent.max_tool_rounds

    @property
    def most_steps(self) -> int:
        """How often its model may reply with nothing."""
        return self.instruction.max_internal_steps if isinstance(self.instruction, AgenticStep) else 1

    def count(self, kind: str) -> int:
        """How many rounds there were of a kind."""
        return sum(each.kind == kind for each in self.rounds)

    @property
    def is_closing(self) -> bool:
        """Whether the model must answer now, because its rounds or steps are used up."""
        return self.count("calls") >= self.most_tool_rounds or self.count("nudge") >= self.most_steps

    @property
    def bound(self) -> str:
        """What is used up, in words."""
        return f"{self.most_steps} steps" if self.count("nudge") >= self.most_steps else f"{self.most_tool_rounds} rounds of tool calls"

    # --- what is asked ----------------------------------------------------------------------------------------------

    def models(self) -> list[Model]:
        """The model to ask, and those to ask when it fails for good."""
        definitions, agent, instruction = self.context.definitions, self.agent, self.instruction
        params: Mapping[str, JsonValue] = {}
        if isinstance(instruction, AgenticStep):
            params = instruction.model_params
        named: str | Model | None = instruction.model_name if isinstance(instruction, AgenticStep) else None
        if named is None and agent.models:
            texts = sum(isinstance(each, str | PromptStep) for each in agent.instructions[: self.number])
            named = agent.models[texts if len(agent.models) > 1 and not isinstance(instruction, AgenticStep) else 0]
        first = named if isinstance(named, Model) else definitions.model_of(named or agent.model)
        own = {**agent.params, **params, **self._examples()}
        return [model.model_copy(update={"params": {**model.params, **own}}) for model in definitions.with_fallbacks(first)]

    def _examples(self) -> dict[str, JsonValue]:
        shown: list[JsonValue] = [{"text": example.input, "label": example.output} for example in self.agent.examples]
        return {"examples": shown} if shown else {}

    async def tools(self) -> tuple[ToolSchema, ...]:
        """What its model may call."""
        known = self.context.definitions.tools
        folder = local_folder(self.context.definitions.folder)
        found: list[ToolSchema] = []
        for name in tools_of(self.agent, self.instruction):
            server, method = mcp_tool(name, known) or (name, "*")
            tool = known[server]
            if tool.mcp is None:
                found.append(await asyncio.to_thread(_described, name, tool, folder))
                continue
            wanted = [each for each in await mcp.list_tools(server, tool.mcp, folder=folder) if method in ("*", each.name)]
            if not wanted:
                raise StepError(f"MCP server {server!r} has no tool {method!r}", code="unknown_tool")
            found += [each.model_copy(update={"name": f"{server}.{each.name}"}) for each in wanted]
        return tuple({tool.name: tool for tool in found}.values())

    def _templates(self) -> list[str]:
        """The texts whose placeholders may name memories."""
        shown = self.agent.instructions[: self.number] if "@first" in self.context.begun.inputs else []
        return [self.agent.system or "", *map(template, [*shown, self.instruction])]

    @cached_property
    def _fillings(self) -> dict[str, str]:
        return {**{name: text or "" for name, text in self.memory.items()}, **placeholder_values(self.context)}

    @property
    def forgotten(self) -> list[str]:
        """The placeholders that name memories which are not there."""
        return [name for name, text in self.memory.items() if text is None]

    @cached_property
    def _prompt(self) -> tuple[str, bool]:
        return _asked(self.instruction, text_input(self.context), self._fillings)

    @property
    def uses_input(self) -> bool:
        """Whether the instruction has a place for its input."""
        return self._prompt[1]

    def messages(self, known: Sequence[ToolSchema]) -> list[Message]:
        """The conversation so far."""
        system = [templates.fill(self.agent.system or "", self._fillings)]
        mode = "minimal"
        if isinstance(self.instruction, AgenticStep):
            mode = self.instruction.history_mode
            system.append(templates.fill(OBJECTIVE, {"objective": templates.fill(self.instruction.objective, self._fillings)}))
        if self.agent.dialect == "json" and known and not self.is_closing:
            system.append("\n".join([JSON_TOOLS, *(_line(tool) for tool in known)]))
        if self.shape and known:  # not every provider takes tools and a schema at once
            system.append(f"{ANSWER}\n{_json(self.shape.schema)}")
        told = "\n\n".join(part for part in system if part)
        base: list[Message] = [{"role": "system", "content": told}] if told else []
        first, *rest = [*self._earlier(), {"role": "user", "content": self._prompt[0]}]
        base += [*history.as_messages(self.said_before, str(first["content"])), *rest]
        return conversation(base, self.rounds, self.answers, mode=mode)  # type: ignore[arg-type]  # one of the three

    def _earlier(self) -> list[Message]:
        """The agent's earlier instructions and what came of them, where it shows them."""
        inputs = self.context.begun.inputs
        if "@first" not in inputs:
            return []
        messages: list[Message] = []
        before = inputs["@first"]
        for number, instruction in enumerate(self.agent.instructions[: self.number]):
            output = inputs[f"@earlier/{number}"]
            if not isinstance(instruction, FunctionStep | MemoryStep | NestedStep):
                asked, _ = _asked(instruction, _text(before), self._fillings)
                messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": _text(output)}]
            before = output
        return messages

    # --- what is answered -------------------------------------------------------------------------------------------

    @cached_property
    def shape(self) -> AnswerValidator | None:
        """The shape that the answer must have, if it must have one."""
        output = self.agent.output
        return AnswerValidator(output, self.name, local_folder(self.context.definitions.folder)) if output and self.is_last else None


def _described(name: str, tool: Tool, folder: str | None) -> ToolSchema:
    """What a model is told of a function: what the configuration says, else what its signature does."""
    if tool.parameters is not None:
        return ToolSchema(name=name, description=tool.description, parameters=tool.parameters)
    return schemas.schema_of(functions.load(str(tool.function), folder), tool, name)


def _answer(output: str | None, info: Mapping[str, JsonValue]) -> ToolResult:
    error = cast("dict[str, str] | None", info.get("error"))
    if error:
        return ToolResult(error=error["message"])
    return ToolResult(value=json.loads(output) if output else None)


def _asked(instruction: str | PromptStep | AgenticStep, text: str, remembered: Mapping[str, str]) -> tuple[str, bool]:
    """What an instruction asks of a model, given its input and the memories it names, and whether it uses the input."""
    if isinstance(instruction, AgenticStep):
        return text, True
    return templates.instruct(template(instruction), text, remembered)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(tool: ToolSchema) -> str:
    return f"- {tool.name}: {tool.description or 'no description'} params: {_json(tool.parameters)}"
