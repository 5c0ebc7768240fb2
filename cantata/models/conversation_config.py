"""What a Diskurs folder declares: agents that hand a conversation to each other, and conductors that say who has it next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cantata.models.params import Params
from cantata.models.values import Value

AgentKind = Literal[
    "conductor",
    "multistep",
    "multistep_predicate",
    "multistep_finalizer",
    "parallel_multistep",
    "heuristic",
    "heuristic_finalizer",
    "llm_compiler",
]
FINALIZERS: frozenset[AgentKind] = frozenset({"multistep_finalizer", "heuristic_finalizer"})


class ConversationModel(Value):
    """A model that agents ask."""

    model: str = Field(description="a LiteLLM model name")
    params: Params = Field(default_factory=dict, description="passed to each call: address, version")
    api_key_variable: str | None = Field(default=None, description="the workers' environment variable that holds its key")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens of a conversation that it is shown, estimated")


class CodeReference(Value):
    """A name in a file of Python, which only workers run."""

    file: str = Field(description="from the configuration's folder")
    name: str = Field(description="a function or class at its top level")


class HandoverRule(Value):
    """Chooses an agent without asking a model."""

    name: str = Field(description="for people")
    description: str = Field(default="", description="for people")
    condition: CodeReference = Field(description="called with the conversation; true: the target is next")
    target: str = Field(description="one of the conductor's topics")


class BranchCode(Value):
    """How a parallel agent splits a conversation, and joins what came of the parts."""

    branch: CodeReference = Field(description="called with the conversation; gives a list of them")
    join: CodeReference = Field(description="called with the list; gives one")
    invoke_on_final: bool = Field(default=False, description="whether the model is asked once more, about what was joined")


class PromptSource(Value):
    """What an agent's model is told, and the code that reads its replies."""

    file: str | None = Field(default=None, description="prompt.py, from the configuration's folder")
    argument: str | None = Field(default=None, description="class of the prompt's arguments, and of the replies")
    system_argument: str | None = Field(default=None, description="class of the system prompt's own arguments, where there are two")
    memory: str | None = Field(default=None, description="class of a conductor's own long-term memory")
    names: dict[str, str] = Field(default_factory=dict, description="what a function is called in the file, where that is not its own name")
    system: str | None = Field(default=None, description="Jinja; the default one of its kind if absent")
    user: str | None = Field(default=None, description="Jinja; the default one of its kind if absent")
    form: str | None = Field(default=None, description="Jinja with `schema`: how a reply is to look; ours if absent")
    parts: dict[str, str] = Field(default_factory=dict, description="the templates that those include, by name")


class ConversationAgent(Value):
    """Someone who can have the conversation."""

    kind: AgentKind = Field(description="how it works")
    description: str = Field(default="", description="what it is good at, for conductors")
    llm: str | None = Field(default=None, description="a name under `llms`")
    topics: list[str] = Field(default_factory=list, description="whom it may hand the conversation to")
    tools: list[str] = Field(default_factory=list, description="names under `tools`")
    prompt: PromptSource = Field(default_factory=PromptSource, description="what it is told")
    max_reasoning_steps: int = Field(default=5, ge=1, le=1000, description="valid replies until one must be final")
    max_trials: int = Field(default=5, ge=1, le=1000, description="replies until one must be valid")
    max_dispatches: int = Field(default=50, ge=1, le=10_000, description="conductor: visits until it gives up")
    locked_fields: dict[str, JsonValue] = Field(default_factory=dict, description="arguments that nothing changes")
    takes_memory: bool = Field(default=True, description="whether its arguments begin with what the long-term memory knows")
    final_properties: list[str] = Field(default_factory=list, description="finalizer: the arguments that are the result")
    render_prompt: bool = Field(default=True, description="heuristic: whether its user prompt is said afterwards")
    rules: list[HandoverRule] = Field(default_factory=list, description="conductor: asked before the model")
    fallback_to_llm: bool = Field(default=True, description="conductor: whether the model is asked where no rule holds")
    descriptions: dict[str, str] = Field(default_factory=dict, description="conductor: of its agents, over their own")
    finalizer: str | None = Field(default=None, description="conductor: the agent that makes the result")
    supervisor: str | None = Field(default=None, description="conductor: the conductor that goes on when this one is done")
    judge: str | None = Field(default=None, description="conductor: the predicate agent that says whether it is done")
    branches: BranchCode | None = Field(default=None, description="parallel_multistep: how it splits and joins")


class ConversationTool(Value):
    """A function that models may call."""

    function: CodeReference = Field(description="the function, or what `create_` stands before to make it")
    configs: dict[str, JsonValue] = Field(default_factory=dict, description="the first argument of its factory")
    dependencies: list[str] = Field(default_factory=list, description="names under `dependencies`, given to its factory by name")


class ToolDependency(Value):
    """An object that factories of tools are given; each worker process makes one."""

    made_by: CodeReference = Field(description="its class")
    parameters: dict[str, JsonValue] = Field(default_factory=dict, description="what the class is called with")


class ConversationConfig(Value):
    """The agents of a folder, and who is spoken to first."""

    first_contact: str = Field(description="who gets the user's text")
    agents: dict[str, ConversationAgent] = Field(description="by name")
    llms: dict[str, ConversationModel] = Field(default_factory=dict, description="by name")
    tools: dict[str, ConversationTool] = Field(default_factory=dict, description="by name")
    dependencies: dict[str, ToolDependency] = Field(default_factory=dict, description="by name")
    memory: CodeReference | None = Field(
        default=None, description="class of the one long-term memory, where conductors have none of their own"
    )
    modules: dict[str, str] = Field(default_factory=dict, description="modules that code may import by name → file")
    keeps_memory: bool = Field(default=True, description="whether the next turn of a session goes on with the long-term memory")

    def memory_of(self, conductor: str) -> CodeReference | None:
        """The class of a conductor's long-term memory; None for the plain one."""
        prompt = self.agents[conductor].prompt
        return CodeReference(file=prompt.file, name=prompt.memory) if prompt.memory and prompt.file else self.memory
