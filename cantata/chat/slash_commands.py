"""What lines of a chat that begin with a slash do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cantata.chat.conversation import ChatBackend
from cantata.chat.output import ChatOutput
from cantata.errors import ConfigError
from cantata.models.values import JsonValue

PREFERENCES = "preferences"
"""The namespace of the memory bank that has what a user prefers."""
DEFAULT_ENTRIES = 20  # entries of a conversation, if no number is named
EXIT_WORDS = frozenset({"exit", "quit", "/exit", "/quit"})

_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


class SlashCommand(NamedTuple):
    """A line that is for the chat itself."""

    name: str
    words: str


def command_of(line: str) -> SlashCommand | None:
    """The command that a line is; None if it is a text to be answered."""
    found = _COMMAND.fullmatch(line.strip())
    return SlashCommand(found[1].lower(), (found[2] or "").strip()) if found else None


def execute(command: SlashCommand, backend: ChatBackend, output: ChatOutput) -> None:
    """Do what a command says. Raises ConfigError if it cannot be understood."""
    if command.name not in COMMANDS:
        raise ConfigError(f"there is no command '/{command.name}'; /help lists them")
    _, do, _ = COMMANDS[command.name]
    do(command.words, backend, output)


def help_text() -> str:
    """What may be typed."""
    rows = [
        *((f"/{name}{f' {given}' if given else ''}", does) for name, (given, _, does) in COMMANDS.items()),
        ("@agent: text", "ask this agent, past all routing"),
        ("@history @agent: text", "the same, with the conversation so far before the text"),
        ("exit, /exit, Ctrl-D", "end the chat; Ctrl-C while an answer comes cancels it"),
    ]
    return "\n".join(f"{typed:38}{does}" for typed, does in rows)


def _help(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.say(f"{help_text()}\n{'agents':38}{', '.join(backend.agents)}")


def _session(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    if words:
        backend.switch(words)
    output.say(f"session {backend.session}: {_count(len(backend.history()), 'entry', 'entries')}")


def _history(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    if words and not words.isdecimal():
        raise ConfigError(f"/history takes a number of entries, not {words!r}")
    entries = backend.history(int(words) if words else DEFAULT_ENTRIES)
    for entry in entries:
        output.recall(entry)
    if not entries:
        output.say("nothing was said yet")


def _clear(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.say(f"{_count(backend.clear(), 'entry', 'entries')} of session {backend.session} forgotten")


def _memory(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    verb, _, rest = words.partition(" ")
    if verb not in MEMORY_COMMANDS:
        raise ConfigError("/memory alone lists what is remembered; /memory set KEY VALUE, /memory get KEY, /memory clear")
    MEMORY_COMMANDS[verb](rest.strip(), backend, output)


def _list_memory(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    keys = backend.memory.list_memories(PREFERENCES)
    for key in keys:
        output.say(f"{key} = {_text(backend.memory.retrieve_memory(key, PREFERENCES))}")
    if not keys:
        output.say("nothing is remembered yet; /memory set KEY VALUE")


def _set_memory(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    key, _, value = words.partition(" ")
    if not value.strip():
        raise ConfigError("/memory set takes a key and a value, such as: /memory set language French")
    backend.memory.store_memory(key, _value(value.strip()), PREFERENCES)
    output.say(f"{key} = {_text(_value(value.strip()))}")


def _get_memory(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    if not backend.memory.memory_exists(words, PREFERENCES):
        raise ConfigError(f"nothing is remembered as {words!r}")
    output.say(_text(backend.memory.retrieve_memory(words, PREFERENCES)))


def _clear_memory(words: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.say(f"{_count(backend.memory.clear_memories(PREFERENCES), 'value', 'values')} forgotten")


CommandHandler = Callable[[str, ChatBackend, ChatOutput], None]

MEMORY_COMMANDS: Mapping[str, CommandHandler] = {"": _list_memory, "set": _set_memory, "get": _get_memory, "clear": _clear_memory}
"""What `/memory` is told to do."""

COMMANDS: Mapping[str, tuple[str, CommandHandler, str]] = {
    "help": ("", _help, "what may be typed"),
    "session": ("[NAME]", _session, "the conversation you are in; with a name, go on with that one"),
    "history": ("[NUMBER]", _history, "what was said"),
    "clear": ("", _clear, "forget what was said in this session"),
    "memory": ("[set KEY VALUE|get KEY|clear]", _memory, "what is remembered of you"),
}
"""Name → what it takes, what does it, and what that is."""


def _value(text: str) -> JsonValue:
    """JSON, or the text itself."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
