"""One turn of a model within an agent's instruction: what it was told before, what it may call, what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from orchestrator.errors import StepError
from orchestrator.models.definitions import Agent, Model, Tool
from orchestrator.models.instructions import AgenticStep, FunctionStep, Nested, Prompt
from orchestrator.models.values import JsonValue, ToolSchema
from orchestrator.planning import repair, templates
from orchestrator.planning.strategies.agents import tools_of
from workers import mcp, schemas, tools
from workers.dialects.messages import Message, conversation
from workers.dialects.rounds import Answer, Round
from workers.work import Work, text_input

OBJECTIVE = (
    "Your objective: {objective}\n\nWork towards it step by step, with the tools you have if they help. "
    "When it is reached, answer without calling a tool: that answer is what you are judged by."
)
JSON_TOOLS = (
    'To call a tool, reply with a JSON object only: {"response": "what you are about to do", '
    '"mcp": {"tool": "name", "method": "", "params": {...}}}. To answer, reply without "mcp". The tools:'
)


@dataclass(frozen=True)
class Turn:
    """A model turn, and the rounds of its instruction so far."""

    work: Work
    rounds: tuple[Round, ...]
    answers: tuple[tuple[Answer, ...], ...]

    @classmethod
    def read(cls, work: Work) -> Turn:
        """What the ledger knows of the rounds before this turn."""
        base, number = str(work.params.get("base") or work.begun.step_id), int(cast(int, work.params.get("round", 0)))
        ledger, run_id = work.process.ledger, work.begun.run_id
        ids = [base if i == 0 else f"{base}/r{i}" for i in range(number)]
        rounds = tuple(Round.from_json(json.loads(text)) for text in ledger.outputs(run_id, ids) if text)
        calls = [f"{step_id}/t{i}" for step_id, done in zip(ids, rounds, strict=True) for i in range(len(done.calls))]
        came = dict(zip(calls, map(_answer, ledger.outputs(run_id, calls), ledger.infos(run_id, calls)), strict=True)) if calls else {}
        answers = tuple(tuple(came[f"{step_id}/t{i}"] for i in range(len(done.calls))) for step_id, done in zip(ids, rounds, strict=True))
        return cls(work, rounds, answers)

    @property
    def name(self) -> str:
        """The agent's."""
        return self.work.text_param("agent")

    @cached_property
    def agent(self) -> Agent:
        """Who asks."""
        return self.work.definitions.agents[self.name]

    @cached_property
    def number(self) -> int:
        """Of the instruction, from 0."""
        return int(cast(int, self.work.params.get("turn", 0)))

    @cached_property
    def instruction(self) -> str | Prompt | AgenticStep:
        """What is asked for."""
        instruction = self.agent.instructions[self.number]
        assert not isinstance(instruction, FunctionStep | Nested)
        return instruction

    @property
    def is_last(self) -> bool:
        """Whether what it gives is the agent's answer."""
        return self.number == len(self.agent.instructions) - 1

    # --- bounds -----------------------------------------------------------------------------------------------------

    @property
    def most_tool_rounds(self) -> int:
        """How often its model may call tools."""
        return self.instruction.max_tool_rounds if isinstance(self.instruction, AgenticStep) else self.agent.max_tool_rounds

    def count(self, kind: str) -> int:
        """How many rounds there were of a kind."""
        return sum(each.kind == kind for each in self.rounds)

    @property
    def is_closing(self) -> bool:
        """Whether the model must answer now, because its rounds are used up."""
        if isinstance(self.instruction, AgenticStep) and self.count("nudge") >= self.instruction.max_internal_steps:
            return True
        return self.count("calls") >= self.most_tool_rounds

    # --- what is asked ----------------------------------------------------------------------------------------------

    def models(self) -> list[Model]:
        """The model to ask, and those to ask when it fails for good."""
        definitions, agent, instruction = self.work.definitions, self.agent, self.instruction
        params: Mapping[str, JsonValue] = {}
        if isinstance(instruction, AgenticStep):
            params = instruction.model_params
        named: str | Model | None = instruction.model_name if isinstance(instruction, AgenticStep) else None
        if named is None and agent.models:
            texts = sum(isinstance(each, str | Prompt) for each in agent.instructions[: self.number])
            named = agent.models[texts if len(agent.models) > 1 and not isinstance(instruction, AgenticStep) else 0]
        first = named if isinstance(named, Model) else definitions.model_of(named or agent.model)
        chosen = [first, *(definitions.model_of(name) for name in first.fallbacks)]
        return [model.model_copy(update={"params": {**model.params, **agent.params, **params, **self._examples()}}) for model in chosen]

    def _examples(self) -> dict[str, JsonValue]:
        shown: list[JsonValue] = [{"text": example.input, "label": example.output} for example in self.agent.examples]
        return {"examples": shown} if shown else {}

    async def tools(self) -> tuple[ToolSchema, ...]:
        """What its model may call."""
        definitions, found = self.work.definitions, []
        folder = tools.folder_here(definitions.folder)
        for name in tools_of(self.agent, self.instruction):
            server, _, method = name.partition(".")
            tool = definitions.tools.get(name) or definitions.tools[server]
            if tool.mcp is None:
                found.append(await asyncio.to_thread(_described, name, tool, folder))
                continue
            of_server = await mcp.list_tools(server, tool.mcp, folder=folder)
            wanted = [each for each in of_server if method in ("", "*", each.name)]
            if not wanted:
                raise StepError(f"MCP server {server!r} has no tool {method!r}", code="unknown_tool")
            found += [each.model_copy(update={"name": f"{server}.{each.name}"}) for each in wanted]
        return tuple(found)

    def prompt(self) -> tuple[str, bool]:
        """What the model is asked, and whether that uses the instruction's input."""
        text = text_input(self.work)
        if isinstance(self.instruction, AgenticStep):
            return text, True
        instruction = self.instruction.prompt if isinstance(self.instruction, Prompt) else self.instruction
        return templates.instruct(instruction, text)

    def messages(self, prompt: str, known: Sequence[ToolSchema]) -> list[Message]:
        """The conversation so far, and the prompt."""
        system = [self.agent.system or ""]
        mode = "minimal"
        if isinstance(self.instruction, AgenticStep):
            mode = self.instruction.history_mode
            system.append(templates.fill(OBJECTIVE, {"objective": self.instruction.objective}))
        if self.agent.dialect == "json" and known:
            system.append("\n".join([JSON_TOOLS, *(_line(tool) for tool in known)]))
        told = "\n\n".join(part for part in system if part)
        base: list[Message] = [{"role": "system", "content": told}] if told else []
        base += self._earlier()
        base.append({"role": "user", "content": prompt})
        return conversation(base, self.rounds, self.answers, mode=mode)  # type: ignore[arg-type]  # one of the three

    def _earlier(self) -> list[Message]:
        """The agent's earlier instructions and what came of them, where it shows them."""
        inputs = self.work.begun.inputs
        messages: list[Message] = []
        before: JsonValue = inputs.get("@input")
        for number in range(self.number):
            if f"@earlier/{number}" not in inputs:
                return []
            output, instruction = inputs[f"@earlier/{number}"], self.agent.instructions[number]
            if isinstance(instruction, str | Prompt):
                text = instruction.prompt if isinstance(instruction, Prompt) else instruction
                asked = templates.instruct(text, before if isinstance(before, str) else json.dumps(before, ensure_ascii=False))[0]
                messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": str(output)}]
            before = output
        return messages

    # --- what is answered -------------------------------------------------------------------------------------------

    def schema(self) -> dict[str, JsonValue] | None:
        """The JSON schema that the answer must fit, if it must fit one."""
        if self.agent.output is None or not self.is_last:
            return None
        if self.agent.output.json_schema is not None:
            return self.agent.output.json_schema
        return cast("dict[str, JsonValue]", self._model_class().model_json_schema())

    def parsed(self, text: str) -> JsonValue:
        """The answer as the JSON that was asked for. Raises ValueError with what is wrong, for the model."""
        output = self.agent.output
        assert output is not None
        value = _json_in(text)
        if output.model_class is not None:
            try:
                return cast(JsonValue, self._model_class().model_validate(value).model_dump(mode="json"))
            except ValidationError as error:
                raise ValueError(_told((".".join(map(str, each["loc"])), each["msg"]) for each in error.errors())) from error
        faults = list(Draft202012Validator(cast("dict[str, JsonValue]", output.json_schema)).iter_errors(value))
        if faults:
            raise ValueError(_told((".".join(map(str, fault.absolute_path)), fault.message) for fault in faults))
        return value

    def _model_class(self) -> type[BaseModel]:
        assert self.agent.output is not None
        name = str(self.agent.output.model_class)
        found: Any = tools.load(name, tools.folder_here(self.work.definitions.folder))
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise StepError(f"{name} is no pydantic model", code="bad_output_class")
        return found


def _described(name: str, tool: Tool, folder: str | None) -> ToolSchema:
    """What a model is told of a function: what the configuration says, else what its signature does."""
    if tool.parameters is not None:
        return ToolSchema(name=name, description=tool.description, parameters=tool.parameters)
    return schemas.schema_of(tools.load(str(tool.function), folder), tool, name)


def _answer(output: str | None, info: Mapping[str, JsonValue]) -> Answer:
    error = cast("dict[str, str] | None", info.get("error"))
    if error:
        return Answer(error=error["message"])
    return Answer(value=json.loads(output) if output else None)


def _json_in(text: str) -> JsonValue:
    """The JSON that a reply is, or holds. Raises ValueError."""
    try:
        return cast(JsonValue, json.loads(text))
    except ValueError as error:
        found = repair.object_of(text)
        if found is None:
            raise ValueError(f"the reply is not JSON ({error})") from error
        return found


def _told(faults: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{place or 'the reply'}: {message}" for place, message in faults)


def _line(tool: ToolSchema) -> str:
    return f"- {tool.name}: {tool.description or 'no description'} params: {json.dumps(tool.parameters, ensure_ascii=False)}"
