"""The schema of a Diskurs `config.yml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from cantata.values import Value
from cantata_frontends.diskurs.conversation_config import AgentKind


class Section(Value):
    """A section or entry of the file; its keys are `camelCase`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class LlmEntry(Section):
    """An entry of `llms`: a model."""

    name: str
    type: Literal["openai", "azure"]
    model_name: str
    model_max_tokens: int | None = Field(default=None, ge=1)
    api_key: str = ""
    api_version: str | None = None
    endpoint: str | None = None
    use_entra_id: bool = False


class ToolEntry(Section):
    """An entry of `tools`: a function that models may call."""

    name: str
    function_name: str
    module_name: str | None = None
    module_path: str | None = None
    configs: dict[str, JsonValue] = Field(default_factory=dict)
    dependencies: list[str] = Field(default_factory=list)


class DependencyEntry(Section):
    """An entry of `toolDependencies`: an object that factories of tools receive."""

    name: str
    module_name: str | None = None
    class_name: str | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class ModuleEntry(Section):
    """An entry of `customModules`: a module that code may import by name."""

    name: str
    location: str


class MemoryEntry(Section):
    """The long-term memory of all conductors."""

    type: str
    location: str | None = None


class StoreEntry(Section):
    """The store of conversations."""

    type: Literal["filesystem", "memory"] = "filesystem"
    is_persistent: bool = True
    directory: str | None = None


class ConversationEntry(Section):
    """The kind of conversations."""

    type: Literal["immutable_conversation", "immutable"] = "immutable_conversation"


class RuleEntry(Section):
    """A rule of a conductor."""

    name: str
    description: str = ""
    location: str | None = None
    condition_name: str
    target_agent: str


class PromptEntry(Section):
    """The prompt of an agent."""

    type: Literal["conductor_prompt", "multistep_prompt", "heuristic_prompt", "llm_compiler_prompt"]
    location: str | None = None
    prompt_argument_class: str | None = None
    user_prompt_argument_class: str | None = None
    system_prompt_argument_class: str | None = None
    longterm_memory_class: str | None = None
    is_valid_name: str | None = None
    is_final_name: str | None = None
    can_finalize_name: str | None = None
    finalize_name: str | None = None
    fail_name: str | None = None
    heuristic_sequence_name: str | None = None
    json_formatting_template: str | None = None


class AgentEntry(Section):
    """An entry of `agents`."""

    name: str
    type: AgentKind
    llm: str | None = None
    topics: list[str] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    prompt: PromptEntry
    max_reasoning_steps: int = Field(default=5, ge=1, le=1000)
    max_trials: int = Field(default=5, ge=1, le=1000)
    max_dispatches: int = Field(default=50, ge=1, le=10_000)
    locked_fields: dict[str, JsonValue] = Field(default_factory=dict)
    init_prompt_arguments_with_longterm_memory: bool = True
    final_properties: list[str] = Field(default_factory=list)
    render_prompt: bool = True
    rules: list[RuleEntry] = Field(default_factory=list)
    fallback_to_llm: bool = True
    agent_descriptions: dict[str, str] = Field(default_factory=dict)
    finalizer_name: str | None = None
    supervisor: str | None = None
    can_finalize_name: str | None = None
    location: str | None = None
    branch_conversation_name: str = "branch_conversation"
    join_conversation_name: str = "join_conversations"
    invoke_on_final: bool = False


class DiskursFile(Section):
    """The whole file."""

    first_contact: str
    tool_executor_type: Literal["default"] = "default"
    dispatcher_type: Literal["asynchronous", "synchronous"] = "asynchronous"
    conversation_type: Literal["immutable_conversation", "immutable"] = "immutable_conversation"
    conversation: ConversationEntry = Field(default_factory=ConversationEntry)
    conversation_store: StoreEntry = Field(default_factory=StoreEntry)
    longterm_memory: MemoryEntry | None = None
    custom_modules: list[ModuleEntry | str] = Field(default_factory=list)
    llms: list[LlmEntry] = Field(default_factory=list)
    tools: list[ToolEntry] = Field(default_factory=list)
    tool_dependencies: list[DependencyEntry] = Field(default_factory=list)
    agents: list[AgentEntry] = Field(min_length=1)


_COMMON_KEYS = {"name", "type", "topics", "prompt", "locked_fields", "init_prompt_arguments_with_longterm_memory"}
_MULTISTEP_KEYS = _COMMON_KEYS | {"llm", "tools", "max_reasoning_steps", "max_trials"}
_HEURISTIC_KEYS = _COMMON_KEYS | {"llm", "tools", "render_prompt"}
AGENT_KEYS: Mapping[AgentKind, frozenset[str]] = {
    "conductor": frozenset(
        _COMMON_KEYS
        | {
            "llm",
            "max_trials",
            "max_dispatches",
            "rules",
            "fallback_to_llm",
            "agent_descriptions",
            "finalizer_name",
            "supervisor",
        }
        | {"can_finalize_name"}
    ),
    "multistep": frozenset(_MULTISTEP_KEYS),
    "multistep_predicate": frozenset(_MULTISTEP_KEYS),
    "multistep_finalizer": frozenset(_MULTISTEP_KEYS | {"final_properties"}),
    "parallel_multistep": frozenset(
        _MULTISTEP_KEYS | {"location", "branch_conversation_name", "join_conversation_name", "invoke_on_final"}
    ),
    "heuristic": frozenset(_HEURISTIC_KEYS),
    "heuristic_finalizer": frozenset(_HEURISTIC_KEYS | {"final_properties"}),
    "llm_compiler": frozenset(_MULTISTEP_KEYS),
}
"""The keys of an agent of each type."""

_CONDUCTOR_PROMPT_KEYS = {
    "longterm_memory_class",
    "can_finalize_name",
    "finalize_name",
    "fail_name",
    "is_valid_name",
    "is_final_name",
}
_CLASS_PROMPT_KEYS = {
    "type", "location", "prompt_argument_class", "user_prompt_argument_class", "system_prompt_argument_class", "json_formatting_template",
}  # fmt: skip
PROMPT_KEYS: Mapping[str, frozenset[str]] = {
    "conductor_prompt": frozenset(_CLASS_PROMPT_KEYS | _CONDUCTOR_PROMPT_KEYS),
    "multistep_prompt": frozenset(_CLASS_PROMPT_KEYS | {"is_valid_name", "is_final_name"}),
    "heuristic_prompt": frozenset(_CLASS_PROMPT_KEYS - {"json_formatting_template"} | {"heuristic_sequence_name"}),
    "llm_compiler_prompt": frozenset({"type", "location", "json_formatting_template"}),
}
"""The keys of a prompt of each type."""


def prompt_type(kind: AgentKind) -> str:
    """Return the type of prompt that agents of a type have."""
    if kind.startswith("heuristic"):
        return "heuristic_prompt"
    return {"conductor": "conductor_prompt", "llm_compiler": "llm_compiler_prompt"}.get(kind, "multistep_prompt")
