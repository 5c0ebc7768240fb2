"""The names that code of a Diskurs folder imports from `diskurs`: prompt arguments, messages, conversations, the tool decorator.

A small compatibility layer: names and behaviour are Diskurs's, the implementation is ours. Only what such code needs is here.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Annotated, Any, Generic, Protocol, Self, TypeVar

from cantata_frontends.diskurs import code_text
from cantata_workers.frontends.diskurs.user_code import fields

T = TypeVar("T")


class PromptValidationError(Exception):
    """Raised by `is_valid`; its message tells the model what to correct."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


# --- prompt arguments -----------------------------------------------------------------------------------------------


class AccessMode(Enum):
    """The source of a prompt argument's field."""

    INPUT = "input"
    OUTPUT = "output"
    LOCKED = "locked"
    PER_TURN = "per_turn"


@dataclass(frozen=True)
class PromptField:
    """The marker of a field."""

    mode: AccessMode = AccessMode.OUTPUT

    def is_input(self) -> bool:
        """Return whether it is filled from the long-term memory; no reply changes it."""
        return self.mode is AccessMode.INPUT

    def is_output(self) -> bool:
        """Return whether it is filled by the model, and handed over."""
        return self.mode is AccessMode.OUTPUT

    def is_locked(self) -> bool:
        """Return whether it is set by the configuration; nothing changes it."""
        return self.mode is AccessMode.LOCKED

    def is_per_turn(self) -> bool:
        """Return whether it is reset in each turn of a session."""
        return self.mode is AccessMode.PER_TURN


def prompt_field(mode: AccessMode = AccessMode.OUTPUT) -> PromptField:
    """Return the marker for an annotation: `Annotated[str, prompt_field(mode=AccessMode.INPUT)]`."""
    return PromptField(mode)


InputField = Annotated[T, PromptField(AccessMode.INPUT)]
OutputField = Annotated[T, PromptField(AccessMode.OUTPUT)]
LockedField = Annotated[T, PromptField(AccessMode.LOCKED)]
PerTurnField = Annotated[T, PromptField(AccessMode.PER_TURN)]


@dataclass
class JsonSerializable:
    """A dataclass with conversion to and from JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dict(fields.to_json(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_dict`; missing fields have their defaults."""
        return fields.from_json(cls, data)


@dataclass
class PromptArgument(JsonSerializable):
    """The arguments that a prompt is rendered with, and that a reply fills."""


@dataclass
class LongtermMemory(JsonSerializable):
    """The facts that a conversation has collected; `user_query` is the user's text."""

    user_query: str = field(default="", kw_only=True)


@dataclass
class DiskursInput(JsonSerializable):
    """A user's message."""

    metadata: dict[str, Any] | None = field(default_factory=dict)
    user_query: str | None = ""
    conversation_id: str | None = ""


# --- conversations --------------------------------------------------------------------------------------------------


class Role(Enum):
    """The author of a message."""

    SYSTEM = "system"
    ASSISTANT = "assistant"
    TOOL = "tool"
    USER = "user"

    def __str__(self) -> str:
        return self.value


class MessageType(Enum):
    """The visibility of a message: for all agents, or for conductors only."""

    CONDUCTOR = "conductor"
    CONVERSATION = "conversation"

    def __str__(self) -> str:
        return self.value


@dataclass
class ChatMessage(JsonSerializable):
    """A message."""

    role: Role
    content: str | None = ""
    name: str | None = ""
    type: MessageType = MessageType.CONVERSATION

    def __post_init__(self) -> None:
        self.role = Role(self.role) if isinstance(self.role, str) else self.role
        self.type = MessageType(self.type) if isinstance(self.type, str) else self.type


class Conversation(Generic[T]):
    """An immutable conversation, for code of a folder: `update` and `append` return another."""

    def __init__(
        self,
        *,
        prompt_argument: Any = None,
        longterm_memory: Any = None,
        chat: Sequence[ChatMessage] = (),
        metadata: Mapping[str, Any] | None = None,
        active_agent: str = "",
        conversation_id: str = "",
        system_prompt: ChatMessage | None = None,
        user_prompt: ChatMessage | Sequence[ChatMessage] | None = None,
    ) -> None:
        self._prompt_argument = copy.deepcopy(prompt_argument)
        self._longterm_memory = copy.deepcopy(longterm_memory)
        self._chat = tuple(copy.deepcopy(list(chat)))
        self._metadata = dict(metadata or {})
        self._active_agent = active_agent
        self._conversation_id = conversation_id
        self.system_prompt = copy.deepcopy(system_prompt)
        """The prompts that code has set for its own calls of a model."""
        self.user_prompt = copy.deepcopy(user_prompt)

    @property
    def prompt_argument(self) -> Any:
        """A copy of the arguments of the agent that has the conversation."""
        return copy.deepcopy(self._prompt_argument)

    @property
    def user_prompt_argument(self) -> Any:
        """The older name of `prompt_argument`."""
        return self.prompt_argument

    @property
    def longterm_memory(self) -> Any:
        """A copy of the long-term memory."""
        return copy.deepcopy(self._longterm_memory)

    def get_agent_longterm_memory(self, agent_name: str = "") -> Any:
        """Return `longterm_memory`; the older form."""
        return self.longterm_memory

    @property
    def chat(self) -> list[ChatMessage]:
        """A copy of the messages."""
        return copy.deepcopy(list(self._chat))

    @property
    def metadata(self) -> dict[str, Any]:
        """The labels of the run."""
        return dict(self._metadata)

    @property
    def active_agent(self) -> str:
        """The agent that has the conversation."""
        return self._active_agent

    @property
    def conversation_id(self) -> str:
        """The session of the turn; the run, if it has none."""
        return self._conversation_id

    @property
    def last_message(self) -> ChatMessage:
        """The last message. Raises ValueError."""
        if not self._chat:
            raise ValueError("The chat is empty.")
        return copy.deepcopy(self._chat[-1])

    def is_empty(self) -> bool:
        """Return whether there are no messages."""
        return not self._chat

    def render_chat(self, message_type: MessageType = MessageType.CONVERSATION) -> list[ChatMessage]:
        """Return the messages that are visible to readers of this type, between the prompts that code has set."""
        visible = [each for each in self.chat if message_type is MessageType.CONDUCTOR or each.type is message_type]
        asked = [self.user_prompt] if isinstance(self.user_prompt, ChatMessage) else list(self.user_prompt or ())
        return [*([self.system_prompt] if self.system_prompt else []), *visible, *asked]

    def update(
        self,
        chat: Sequence[ChatMessage] | None = None,
        prompt_argument: Any = None,
        *,
        user_prompt_argument: Any = None,
        system_prompt: ChatMessage | None = None,
        user_prompt: ChatMessage | Sequence[ChatMessage] | None = None,
        longterm_memory: Any = None,
        metadata: Mapping[str, Any] | None = None,
        active_agent: str | None = None,
    ) -> Conversation[T]:
        """Return another conversation with these values replaced."""
        given = prompt_argument if prompt_argument is not None else user_prompt_argument
        return Conversation(
            prompt_argument=self._prompt_argument if given is None else given,
            longterm_memory=self._longterm_memory if longterm_memory is None else longterm_memory,
            chat=self._chat if chat is None else chat,
            metadata=self._metadata if metadata is None else metadata,
            active_agent=self._active_agent if active_agent is None else active_agent,
            conversation_id=self._conversation_id,
            system_prompt=system_prompt or self.system_prompt,
            user_prompt=user_prompt or self.user_prompt,
        )

    def append(
        self, message: ChatMessage | str | Sequence[ChatMessage], role: Role | str = Role.USER, name: str = ""
    ) -> Conversation[T]:
        """Return another conversation with a message, or several, appended."""
        if isinstance(message, str):
            message = ChatMessage(role=Role(role) if isinstance(role, str) else role, content=message, name=name)
        added = [message] if isinstance(message, ChatMessage) else list(message)
        return self.update(chat=[*self._chat, *added])

    def update_longterm_memory(self, source: Any) -> Conversation[T]:
        """Return another conversation with the fields of `source` merged into its long-term memory, by name."""
        known = fields.to_json(self._longterm_memory)
        merged = fields.merge(known, fields.to_json(source))
        return self.update(longterm_memory=fields.from_json(type(self._longterm_memory), merged))

    def update_agent_longterm_memory(self, agent_name: str, longterm_memory: Any) -> Conversation[T]:
        """Return another conversation with this long-term memory; the older form."""
        return self.update(longterm_memory=longterm_memory)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "prompt_argument": None if self._prompt_argument is None else fields.to_json(self._prompt_argument),
            "longterm_memory": None if self._longterm_memory is None else fields.to_json(self._longterm_memory),
            "chat": [each.to_dict() for each in self._chat],
            "metadata": self.metadata,
            "active_agent": self._active_agent,
        }


@dataclass
class RoutingRule:
    """A routing rule."""

    name: str
    description: str
    condition: Callable[[Conversation[Any]], bool]
    target_agent: str


# --- tools ----------------------------------------------------------------------------------------------------------

_PARAMETER = re.compile(r":param\s+(?:\w+\s+)?(\w+):\s*(.*)")
_RETURN = re.compile(r":returns?:\s*(.*)")
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
INVISIBLE = "[invisible]"


@dataclass(frozen=True)
class ToolDescription:
    """The description of a function for models, and its parameters that the conversation's metadata fills."""

    name: str
    description: str
    arguments: dict[str, dict[str, str]]
    invisible: tuple[str, ...] = ()

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> ToolDescription:
        """Read a docstring: `:param name: text`, with `[invisible]` in the text of parameters that no model sees, and `:return: text`.

        Parameters that the docstring does not describe are left out; those that it describes are required.
        """
        summary: list[str] = []
        parameters: dict[str, str] = {}
        current: str | None = None
        for line in map(str.strip, (inspect.getdoc(function) or "").splitlines()):
            if found := _PARAMETER.match(line):
                current, parameters[found[1]] = found[1], found[2]
            elif found := _RETURN.match(line):
                summary.append(f"Returns: {found[1]}")
                current = None
            elif current and line:
                parameters[current] += f" {line}"
            elif line:
                summary.append(line)
        hidden = tuple(name for name, text in parameters.items() if INVISIBLE in text)
        types = _annotations(function)
        shown = {
            name: {"type": _TYPES.get(types.get(name, ""), "string"), "description": text.strip()}
            for name, text in parameters.items()
            if name not in hidden
        }
        return cls(getattr(function, "__name__", "tool"), "\n".join(summary), shown, hidden)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.arguments),
            "additionalProperties": False,
        }


def _annotations(function: Callable[..., Any]) -> dict[str, str]:
    found = getattr(inspect.unwrap(function), "__annotations__", {})
    return {name: each if isinstance(each, str) else getattr(each, "__name__", "") for name, each in found.items()}


def tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as a tool; its docstring is its description for models."""
    described = ToolDescription.from_function(function)
    for name, value in (
        ("name", described.name),
        ("description", described.description),
        ("args", described.arguments),
        ("invisible_args", dict.fromkeys(described.invisible, "")),
    ):
        setattr(function, name, value)
    return function


class ToolDependency:
    """An object for factories of tools, created by its class's `create(name=..., **parameters)` if there is one, else by the class."""

    name: str


# --- sequences ------------------------------------------------------------------------------------------------------

CallTool = Callable[..., Any]
"""Passed to a heuristic sequence: `await call_tool(function_name, arguments, metadata=None)`."""


class LLMClient(Protocol):
    """Passed to a heuristic sequence, to call its agent's model."""

    async def generate(self, conversation: Conversation[Any], tools: object = None) -> Conversation[Any]:
        """Return the conversation with the model's reply appended."""


# --- the module `diskurs` that such code imports, if no real one is installed ----------------------------------------

ImmutableConversation = Conversation


@contextmanager
def importable() -> Iterator[None]:
    """Make `import diskurs`, and those of its modules that prompts and tools import, return our names inside the block."""
    added = (
        {}
        if code_text.is_installed()
        else {name: module for name, module in _modules().items() if name not in sys.modules}
    )
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


@lru_cache(maxsize=1)
def _modules() -> dict[str, ModuleType]:
    names = {name: globals()[name] for name in code_text.NAMES}
    package = ModuleType(code_text.PACKAGE, __doc__)
    package.__path__ = []
    found = {package.__name__: package}
    for part in code_text.PARTS:
        module = found[f"{package.__name__}.{part}"] = ModuleType(f"{package.__name__}.{part}", __doc__)
        setattr(package, part, module)
    for module in found.values():
        vars(module).update(names)
    return found
