"""An agent's prompt at run time: rendering of its templates, reading and validation of replies by its classes and functions."""

from __future__ import annotations

import json
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cantata.errors import StepError
from cantata.flows.expressions import templates
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue, ToolSchema
from cantata_frontends.diskurs.conversation_config import CodeReference, ConversationAgent, ConversationConfig
from cantata_workers.frontends.diskurs import plans, tool_calling
from cantata_workers.frontends.diskurs.conversation_state import ConversationState
from cantata_workers.frontends.diskurs.replies import ReplyError, check_made, read_reply
from cantata_workers.frontends.diskurs.user_code import code_loading, fields
from cantata_workers.frontends.diskurs.user_code.entities import (
    LockedField,
    LongtermMemory,
    OutputField,
    PromptArgument,
)
from cantata_workers.process import resource_limits
from cantata_workers.process.step_context import StepContext

CONDUCTOR_SYSTEM = """You direct a conversation among agents. These are the agents, and what each of them is good at:
{% for name, description in agent_descriptions.items() %}
- {{ name }}: {{ description }}
{%- endfor %}

Choose the agent that is best suited to go on. Do not solve the problem yourself."""
CONDUCTOR_USER = (
    """Read the conversation so far. Which agent can contribute best to where it is going? Name it in next_agent."""
)
FORM = """Reply with one JSON object of this form, and with nothing else. A value that you do not know is an empty text ("").

```json
{skeleton}
```"""


@dataclass
class DefaultConductorPromptArgument(PromptArgument):
    """The prompt argument of a conductor without a class of its own."""

    agent_descriptions: LockedField[dict[str, str]] = field(default_factory=dict)
    next_agent: OutputField[str] = ""


@dataclass(frozen=True)
class Prompter:
    """The prompt of one agent, in a worker that runs its code."""

    context: StepContext
    name: str

    @cached_property
    def config(self) -> ConversationConfig:
        """The configuration of the folder."""
        return code_loading.config_of(self.context)

    @cached_property
    def agent(self) -> ConversationAgent:
        """The agent."""
        return self.config.agents[self.name]

    # --- arguments --------------------------------------------------------------------------------------------------

    @cached_property
    def argument_class(self) -> type:
        """The class of the arguments, and of the replies."""
        prompt = self.agent.prompt
        if prompt.argument and prompt.file:
            return self._class(prompt.file, prompt.argument)
        if self.agent.kind == "llm_compiler":
            return plans.PlanningPromptArgument
        return DefaultConductorPromptArgument if self.agent.kind == "conductor" else PromptArgument

    def arguments(self, state: ConversationState) -> dict[str, JsonValue]:
        """Return the initial arguments: defaults, values of the long-term memory, and locked fields."""
        begun = fields.blank(self.argument_class)
        if self.agent.takes_memory:
            begun = fields.merge(begun, self.memory(state), fields.taken_from_memory(self.argument_class))
        return self._locked(begun)

    def _locked(self, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        locked = dict(self.agent.locked_fields)
        if "agent_descriptions" in arguments:
            locked.setdefault("agent_descriptions", self._descriptions())
        return {**arguments, **{name: value for name, value in locked.items() if name in arguments}}

    def check_names(self) -> list[str]:
        """Return warnings about names in the templates that are not defined.

        Raises StepError if the configuration names a field that the agent's classes do not have.
        """
        own = fields.hints(self.argument_class)
        self._check_fields("lockedFields", self.agent.locked_fields, {**own, **self._system_arguments})
        if self.agent.kind == "multistep_finalizer":
            self._check_fields("finalProperties", self.agent.final_properties, own)
        shared = {*own, *self._shown_to_conductors()}
        tools = {"tools"} if self.agent.kind == "llm_compiler" else set()
        known = {"system": {*shared, *self._system_arguments, *tools}, "user": shared, "form": {"schema"}}
        prompt = self.agent.prompt
        return [
            f"the {which} prompt of agent {self.name!r} uses {name!r}, which is not defined and renders as nothing"
            for which, text in (("system", prompt.system), ("user", prompt.user), ("form", prompt.form))
            for name in sorted(templates.undeclared(text or "", tuple(prompt.parts.values())) - known[which])
        ]

    def _check_fields(self, key: str, names: Iterable[str], known: Collection[str]) -> None:
        for name in names:
            if name not in known:
                near = did_you_mean(name, known)
                message = f"{key} of agent {self.name!r} names {name!r}, which is no field of {self.argument_class.__name__}{near}"
                raise StepError(message, code="bad_configuration")

    @cached_property
    def _system_arguments(self) -> dict[str, JsonValue]:
        """The arguments of the system prompt, if they have a class of their own."""
        prompt = self.agent.prompt
        if not (prompt.system_argument and prompt.file):
            return {}
        begun = fields.blank(self._class(prompt.file, prompt.system_argument))
        return {**begun, **{name: value for name, value in self.agent.locked_fields.items() if name in begun}}

    def read(self, text: str, arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the arguments updated by a reply. Raises ReplyError."""
        given = read_reply(text, self.argument_class, self.agent.locked_fields)
        updated = fields.merge(arguments, given)
        if self.agent.kind == "llm_compiler":
            updated = plans.merge_plan(arguments, updated)
        self._check(updated)
        return updated

    def _check(self, arguments: Mapping[str, JsonValue]) -> None:
        check_made(self.argument_class, arguments)
        if self.agent.kind == "llm_compiler":
            plans.check(arguments, self.agent.tools)
        if found := self.function("is_valid"):
            try:
                if code_loading.call(self.context, found, self.instance(arguments)) is False:
                    raise ReplyError(code_loading.INVALID)
            except StepError as error:
                if (text := code_loading.refusal_of(error)) is None:
                    raise
                raise ReplyError(text) from None
        if self.agent.kind == "conductor":
            self._check_next(arguments)

    def _check_next(self, arguments: Mapping[str, JsonValue]) -> None:
        chosen = arguments.get("next_agent")
        if chosen and chosen not in self.agent.topics:
            raise ReplyError(f"{chosen} cannot be routed to from this agent. Valid agents are: {self.agent.topics}")

    def is_final(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Return whether a valid reply ends the agent's turn."""
        if self.agent.kind == "llm_compiler":
            return plans.is_final(arguments)
        if self.agent.kind == "conductor" and not arguments.get("next_agent"):
            return False
        found = self.function("is_final")
        return found is None or bool(code_loading.call(self.context, found, self.instance(arguments)))

    def instance(self, arguments: Mapping[str, JsonValue]) -> Any:
        """Return the arguments as an instance of their class, for code of the folder."""
        return fields.from_json(self.argument_class, arguments)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that its model may call; a planning agent calls none itself."""
        return () if self.agent.kind == "llm_compiler" else self._described

    @cached_property
    def _described(self) -> tuple[ToolSchema, ...]:
        return tuple(tool_calling.schema_of(self.context, name) for name in self.agent.tools)

    # --- texts ------------------------------------------------------------------------------------------------------

    def system(self, arguments: Mapping[str, JsonValue]) -> str:
        """Return the system prompt, with the form of a reply."""
        prompt = self.agent.prompt
        context = {**arguments, **self._system_arguments, **self._shown_to_conductors()}
        if self.agent.kind == "llm_compiler":
            context["tools"] = [_shown(tool) for tool in self._described]
        rendered = self._render("system", prompt.system, context)
        filled = fields.filled_by_replies(self.argument_class, self.agent.locked_fields)
        skeleton = {name: _example(fields.hints(self.argument_class)[name]) for name in filled}
        if prompt.form is not None:
            form = self._render("json", prompt.form, {"schema": skeleton})
        else:
            form = FORM.replace("{skeleton}", json.dumps(skeleton, indent=2, ensure_ascii=False))
        return f"{rendered}\n\n{form}" if rendered else form

    def user(self, arguments: Mapping[str, JsonValue]) -> str:
        """Return the user prompt for the current arguments."""
        return self._render("user", self.agent.prompt.user, {**arguments, **self._shown_to_conductors()})

    def _render(self, which: str, template: str | None, context: Mapping[str, JsonValue]) -> str:
        text = template if template is not None else DEFAULTS.get((self.agent.kind, which), "")
        prompt = f"the {which} prompt of agent {self.name!r}"
        limit_s = self.context.definitions.limits.render_s
        try:
            with self.context.process.time_limit(
                self.context.begun, limit_s, f"{prompt}: its template (limits.render_s)"
            ):
                return templates.render(text, context, self.agent.prompt.parts)
        except templates.TemplateError as error:
            raise StepError(f"{prompt}: {error}", code="bad_template") from error
        except MemoryError as error:
            traceback.clear_frames(error.__traceback__)  # their memory is needed to report the error
            raise StepError(
                f"{prompt}: its template ran out of memory{resource_limits.limit_note()}", code="bad_template"
            ) from None

    def _shown_to_conductors(self) -> dict[str, JsonValue]:
        return {"agent_descriptions": self._descriptions()} if self.agent.kind == "conductor" else {}

    def _descriptions(self) -> dict[str, JsonValue]:
        own = self.agent.descriptions
        return {name: own.get(name, self.config.agents[name].description).strip() for name in self.agent.topics}

    # --- long-term memory -------------------------------------------------------------------------------------------

    def memory(self, state: ConversationState) -> dict[str, JsonValue]:
        """Return the long-term memory of the conductor that has or had the conversation."""
        conductor = self.name if self.agent.kind == "conductor" else state.conductor
        key = memory_key(self.config.memory_of(conductor)) if conductor else next(iter(state.memories))
        return state.memories[key]

    def memory_instance(self, state: ConversationState) -> Any:
        """Return the same as an instance of its class, for code of the folder."""
        conductor = self.name if self.agent.kind == "conductor" else state.conductor
        found = self.config.memory_of(conductor) if conductor else self.config.memory
        return fields.from_json(memory_class(self.context, found), self.memory(state))

    # --- code -------------------------------------------------------------------------------------------------------

    def function(self, role: str) -> CodeReference | None:
        """Return a function of its prompt.py; None if there is none and none was named. Raises StepError."""
        prompt = self.agent.prompt
        name = prompt.names.get(role, role)
        if not name or prompt.file is None:
            return None
        classes = filter(None, (prompt.argument, prompt.system_argument, prompt.memory))
        return code_loading.optional(self.context, prompt.file, name, is_named=role in prompt.names, beside=classes)

    def _class(self, file: str, name: str) -> type:
        found: type = code_loading.code_folder_of(self.context).load(
            CodeReference(file=file, name=name), self.config.modules
        )
        fields.check_nesting(found)
        return found


DEFAULTS: Mapping[tuple[str, str], str] = {
    ("conductor", "system"): CONDUCTOR_SYSTEM,
    ("conductor", "user"): CONDUCTOR_USER,
    ("llm_compiler", "system"): plans.SYSTEM,
    ("llm_compiler", "user"): plans.USER,
}
"""(kind, prompt) → the template of agents that need none of their own."""


def memory_key(of: CodeReference | None) -> str:
    """Return the key of a long-term memory."""
    return f"{of.file}:{of.name}" if of else "plain"


def memory_class(context: StepContext, of: CodeReference | None) -> type:
    """Return the class of a long-term memory."""
    if of is None:
        return LongtermMemory
    found: type = code_loading.code_folder_of(context).load(of, code_loading.config_of(context).modules)
    return found


def _shown(tool: ToolSchema) -> JsonValue:
    """Return a tool for the prompt of a planning agent."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": json.dumps(tool.parameters, ensure_ascii=False),
    }


def _example(hint: Any) -> JsonValue:
    """Return the empty value of a type in the form of a reply, with nested fields."""
    plain = fields.plain_type(hint)
    item = fields.item_class(plain)
    if item is not None:
        example: JsonValue = {name: _example(each) for name, each in fields.hints(item).items()}
        return [example] if plain is not item else example
    empty: JsonValue = fields.to_json(fields.empty(plain))
    return "" if empty is None else empty
