"""Configuration of conversations that agents hand over to each other, and of conductors that choose the next agent (Diskurs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, JsonValue

from cantata.values import Params, Value

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
    """A model of agents."""

    model: str = Field(description="a LiteLLM model name")
    params: Params = Field(default_factory=dict, description="passed to each call: address, version")
    api_key_variable: str | None = Field(None, description="the workers' environment variable that holds its key")
    max_tokens: int | None = Field(None, ge=1, description="estimated tokens of the conversation in one prompt")


class CodeReference(Value):
    """A name in a Python file. Only workers import the file."""

    file: str = Field(description="path from the configuration's folder")
    name: str = Field(description="a function or class at its top level")


class HandoverRule(Value):
    """A rule that chooses an agent without a model call."""

    name: str = Field(description="for people")
    description: str = Field("", description="for people")
    condition: CodeReference = Field(description="called with the conversation; if it returns true, the target is next")
    target: str = Field(description="one of the conductor's topics")


class BranchCode(Value):
    """The code with which a parallel agent splits and joins a conversation."""

    branch: CodeReference = Field(description="called with the conversation; returns a list of conversations")
    join: CodeReference = Field(description="called with the list; returns one conversation")
    invoke_on_final: bool = Field(
        False, description="whether the model is asked once more, about the joined conversation"
    )


class PromptSource(Value):
    """The templates of an agent's prompts, and the code that reads its model's replies."""

    file: str | None = Field(None, description="prompt.py, path from the configuration's folder")
    argument: str | None = Field(None, description="class of the prompt's arguments, and of the replies")
    system_argument: str | None = Field(
        None, description="class of the system prompt's own arguments, if it has its own"
    )
    memory: str | None = Field(None, description="class of a conductor's own long-term memory")
    names: dict[str, str] = Field(
        default_factory=dict, description="function → its name in the file; empty: Diskurs's default"
    )
    system: str | None = Field(None, description="Jinja; the default template of the agent's kind if absent")
    user: str | None = Field(None, description="Jinja; the default template of the agent's kind if absent")
    form: str | None = Field(
        None, description="Jinja with `schema`: the required form of a reply; a default template if absent"
    )
    parts: dict[str, str] = Field(default_factory=dict, description="the templates that these include, by name")


class ConversationAgent(Value):
    """An agent that can take a turn in the conversation."""

    kind: AgentKind = Field(description="the algorithm of its turns")
    description: str = Field("", description="what it is good at, for conductors")
    llm: str | None = Field(None, description="a name under `llms`")
    topics: list[str] = Field(default_factory=list, description="the agents that it may hand the conversation over to")
    tools: list[str] = Field(default_factory=list, description="names under `tools`")
    prompt: PromptSource = Field(default_factory=PromptSource, description="its prompts")
    max_reasoning_steps: int = Field(5, ge=1, le=1000, description="valid replies of a turn, the final one included")
    max_trials: int = Field(5, ge=1, le=1000, description="replies until one is valid")
    max_dispatches: int = Field(50, ge=1, le=10_000, description="conductor: turns until it gives up")
    locked_fields: dict[str, JsonValue] = Field(default_factory=dict, description="arguments that never change")
    takes_memory: bool = Field(True, description="whether its arguments are initialised from the long-term memory")
    final_properties: list[str] = Field(
        default_factory=list, description="finalizer: the arguments that are the result"
    )
    render_prompt: bool = Field(
        True, description="heuristic: whether its user prompt is added to the conversation afterwards"
    )
    rules: list[HandoverRule] = Field(
        default_factory=list, description="conductor: evaluated before the model is asked"
    )
    fallback_to_llm: bool = Field(True, description="conductor: whether the model is asked if no rule matches")
    descriptions: dict[str, str] = Field(
        default_factory=dict, description="conductor: descriptions of its agents that replace their own"
    )
    finalizer: str | None = Field(None, description="conductor: the agent that builds the result")
    supervisor: str | None = Field(None, description="conductor: the conductor that continues when this one is done")
    judge: str | None = Field(
        None, description="conductor: the predicate agent that decides whether the conversation is done"
    )
    branches: BranchCode | None = Field(None, description="parallel_multistep: the code that splits and joins")


class ConversationTool(Value):
    """A function that models may call."""

    function: CodeReference = Field(
        description="the function, or the name that with the prefix `create_` is its factory"
    )
    configs: dict[str, JsonValue] = Field(default_factory=dict, description="the first argument of its factory")
    dependencies: list[str] = Field(
        default_factory=list, description="names under `dependencies`, passed to its factory by name"
    )


class ConversationDependency(Value):
    """An object that is passed to the factories of tools. Each worker process makes its own."""

    made_by: CodeReference = Field(description="its class")
    parameters: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the class")


class ConversationConfig(Value):
    """The agents of a folder, and the agent that gets the user's text."""

    first_contact: str = Field(description="the agent that gets the user's text")
    agents: dict[str, ConversationAgent] = Field(description="by name")
    llms: dict[str, ConversationModel] = Field(default_factory=dict, description="by name")
    tools: dict[str, ConversationTool] = Field(default_factory=dict, description="by name")
    dependencies: dict[str, ConversationDependency] = Field(default_factory=dict, description="by name")
    memory: CodeReference | None = Field(
        None, description="class of the long-term memory of conductors without their own"
    )
    modules: dict[str, str] = Field(default_factory=dict, description="module that code may import → its file")
    keeps_memory: bool = Field(
        True, description="whether the next turn of a session continues with the long-term memory"
    )

    def memory_of(self, conductor: str) -> CodeReference | None:
        """Return the class of a conductor's long-term memory; None for the default class."""
        prompt = self.agents[conductor].prompt
        return CodeReference(file=prompt.file, name=prompt.memory) if prompt.memory and prompt.file else self.memory

    def code(self) -> Iterator[CodeReference]:
        """Yield the code that steps import; without a name where only the file is sure, since a function has a default or a factory."""
        for agent in self.agents.values():
            prompt = agent.prompt
            if prompt.file is not None:
                named = (prompt.argument, prompt.system_argument, prompt.memory, *prompt.names.values())
                yield from (CodeReference(file=prompt.file, name=name) for name in ("", *filter(None, named)))
            yield from (rule.condition for rule in agent.rules)
            yield from (agent.branches.branch, agent.branches.join) if agent.branches else ()
        yield from (CodeReference(file=tool.function.file, name="") for tool in self.tools.values())
        yield from (dependency.made_by for dependency in self.dependencies.values())
        yield from (self.memory,) if self.memory else ()
