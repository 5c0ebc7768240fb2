"""Instructions of agents: prompts, functions, memory functions, agentic steps, other agents and chains."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from cantata.values import JsonValue, Params, Value

FUNCTION = r"^[\w.]+:\w+$"


class PromptStep(Value):
    """A prompt with its own list of tools, in place of the agent's."""

    prompt: str = Field(description="the text; `{input}` is the answer before, or the input")
    tools: list[str] = Field(description="names of tools; an empty list for none")


class FunctionStep(Value):
    """A Python function: between the prompts it gets the answer before it and returns the next input; or a chainbreaker."""

    function: str = Field(
        description="module:name, importable from the configuration's folder; takes the text, or nothing",
        pattern=FUNCTION,
    )
    args: list[JsonValue] = Field(default_factory=list, description="arguments before those that it is called with")
    kwargs: Params = Field(default_factory=dict, description="further arguments, by name")


class MemoryStep(Value):
    """A memory function between the prompts: it executes the lines of the text before it that begin with MEMORY, and adds replies."""

    memory: str = Field(min_length=1, max_length=256, description="the namespace that its commands read and write")


class AgenticStep(Value):
    """An objective that a model pursues in rounds of tool calls, until it answers."""

    objective: str = Field(min_length=1, description="the objective")
    tools: list[str] | None = Field(None, description="names of tools; all of the agent's if absent")
    model_name: str | None = Field(
        None, description="a name under `models` or a LiteLLM name; the agent's model if absent"
    )
    model_params: Params = Field(default_factory=dict, description="model parameters, over those of the model")
    max_internal_steps: int = Field(
        5, ge=1, description="replies that neither call a tool nor answer, before the step fails"
    )
    max_tool_rounds: int = Field(
        40, ge=1, description="rounds of tool calls, before the model is asked to answer without tools"
    )
    history_mode: Literal["minimal", "progressive", "kitchen_sink"] = Field(
        "minimal",
        description="the earlier turns that a model turn sees: calls with their texts and results; kitchen_sink: earlier instructions too",
    )


class NestedStep(Value):
    """Another agent, or a chain, as one instruction."""

    agent: str | None = Field(None, description="a name under `agents`")
    chain: str | None = Field(None, description="a name under `chains`; its input is {input: the answer before}")

    @model_validator(mode="after")
    def _is_one(self) -> NestedStep:
        if (self.agent is None) == (self.chain is None):
            raise ValueError("name an agent or a chain, one of them")
        return self


_TYPES: dict[type, str] = {
    str: "a text", PromptStep: "a prompt", FunctionStep: "a function", MemoryStep: "a memory", AgenticStep: "an objective",
    NestedStep: "a chain",
}  # fmt: skip
"""Kind of instruction → its tag, which equals no key: paths of errors have both."""
_KEYS: dict[str, type] = {
    "prompt": PromptStep, "function": FunctionStep, "memory": MemoryStep, "objective": AgenticStep, "agent": NestedStep,
    "chain": NestedStep,
}  # fmt: skip


def _kind_of(value: Any) -> str | None:
    if isinstance(value, dict):
        return next((_TYPES[kind] for key, kind in _KEYS.items() if key in value), None)
    return _TYPES.get(type(value))


def _pair(value: Any) -> Any:
    """Return `[text, [tools]]` as a prompt with its tools."""
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], list | tuple)
    ):
        return {"prompt": value[0], "tools": list(value[1])}
    return value


Chainbreaker = Annotated[
    FunctionStep,
    BeforeValidator(
        lambda given: {"function": given} if isinstance(given, str) else given,
        json_schema_input_type=FunctionStep | str,
    ),
]
"""A function that may end an agent's instructions; as a text, its name."""

_Instruction = Annotated[
    Annotated[str, Tag(_TYPES[str])]
    | Annotated[PromptStep, Tag(_TYPES[PromptStep])]
    | Annotated[FunctionStep, Tag(_TYPES[FunctionStep])]
    | Annotated[MemoryStep, Tag(_TYPES[MemoryStep])]
    | Annotated[AgenticStep, Tag(_TYPES[AgenticStep])]
    | Annotated[NestedStep, Tag(_TYPES[NestedStep])],
    Discriminator(
        _kind_of,
        custom_error_type="instruction",
        custom_error_message="expected a text, or a mapping with `prompt`, `function`, `memory`, `objective`, `agent` or `chain`",
    ),
]
Instruction = Annotated[
    _Instruction, BeforeValidator(_pair, json_schema_input_type=_Instruction | tuple[str, list[Any]])
]
"""One instruction of an agent."""
