"""Slash commands of a chat."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cantata.bounds import read_json_or_text
from cantata.errors import ConfigError
from cantata.surfaces.chat.backend import ChatBackend
from cantata.surfaces.chat.output import ChatOutput
from cantata.text import text_format
from cantata.values import as_text

PREFERENCES = "preferences"
"""The namespace of the memory bank with the preferences of the user."""
DEFAULT_ENTRIES = 20  # of a conversation, without a number
EXIT_WORDS = frozenset({"exit", "quit", "/exit", "/quit"})

_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


class SlashCommand(NamedTuple):
    """A line that is a command to the chat itself."""

    name: str
    argument: str


def parse_command(line: str) -> SlashCommand | None:
    """Return the command in a line; None for a text to submit."""
    found = _COMMAND.fullmatch(line.strip())
    return SlashCommand(found[1].lower(), (found[2] or "").strip()) if found else None


def execute(command: SlashCommand, backend: ChatBackend, output: ChatOutput) -> None:
    """Execute a command. Raises ConfigError if it is unknown or its argument is invalid."""
    if command.name not in COMMANDS:
        raise ConfigError(f"there is no command '/{command.name}'; see /help")
    _, handler, _ = COMMANDS[command.name]
    handler(command.argument, backend, output)


def help_text() -> str:
    """Return the table of commands."""
    rows = [
        *((f"/{name} {usage}".rstrip(), description) for name, (usage, _, description) in COMMANDS.items()),
        ("@agent: text", "submit the text to this agent, without routing"),
        ("@history @agent: text", "the same, with the conversation so far before the text"),
        ("exit, /exit, Ctrl-D", "end the chat; Ctrl-C cancels the turn under way"),
    ]
    return "\n".join(f"{usage:38}{description}" for usage, description in rows)


def _help(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.print_text(f"{help_text()}\n{'agents':38}{', '.join(backend.agents)}")


def _session(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    if argument:
        backend.switch(argument)
    output.print_text(f"session {backend.session}: {text_format.counted(len(backend.history()), 'entry', 'entries')}")


def _history(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    if argument and not argument.isdecimal():
        raise ConfigError(f"/history expects a number of entries, not {argument!r}")
    entries = backend.history(int(argument) if argument else DEFAULT_ENTRIES)
    for entry in entries:
        output.print_entry(entry)
    if not entries:
        output.print_text("the session has no entries yet")


def _clear(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.print_text(
        f"deleted {text_format.counted(backend.clear(), 'entry', 'entries')} of session {backend.session}"
    )


def _memory(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    verb, _, rest = argument.partition(" ")
    if verb not in MEMORY_COMMANDS:
        raise ConfigError("expected /memory, /memory set KEY VALUE, /memory get KEY or /memory clear")
    MEMORY_COMMANDS[verb](rest.strip(), backend, output)


def _list_memory(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    keys = backend.memory.list_memories(PREFERENCES)
    for key in keys:
        output.print_text(f"{key} = {as_text(backend.memory.retrieve_memory(key, PREFERENCES))}")
    if not keys:
        output.print_text("no preferences yet; /memory set KEY VALUE adds one")


def _set_memory(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    key, _, value = argument.partition(" ")
    if not value.strip():
        raise ConfigError("/memory set expects a key and a value, such as: /memory set language French")
    backend.memory.store_memory(key, read_json_or_text(value.strip()), PREFERENCES)
    output.print_text(f"{key} = {as_text(read_json_or_text(value.strip()))}")


def _get_memory(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    if not backend.memory.memory_exists(argument, PREFERENCES):
        raise ConfigError(f"there is no preference {argument!r}; /memory lists them")
    output.print_text(as_text(backend.memory.retrieve_memory(argument, PREFERENCES)))


def _clear_memory(argument: str, backend: ChatBackend, output: ChatOutput) -> None:
    output.print_text(f"deleted {text_format.counted(backend.memory.clear_memories(PREFERENCES), 'value')}")


CommandHandler = Callable[[str, ChatBackend, ChatOutput], None]

MEMORY_COMMANDS: Mapping[str, CommandHandler] = {
    "": _list_memory,
    "set": _set_memory,
    "get": _get_memory,
    "clear": _clear_memory,
}
"""Subcommand of `/memory` → its handler."""

COMMANDS: Mapping[str, tuple[str, CommandHandler, str]] = {
    "help": ("", _help, "show the commands and the agents"),
    "session": ("[NAME]", _session, "show the session; with a name, continue that one"),
    "history": ("[NUMBER]", _history, "show the newest entries of the session"),
    "clear": ("", _clear, "delete the entries of the session"),
    "memory": ("[set KEY VALUE|get KEY|clear]", _memory, "list, set, get or delete your preferences"),
}
"""Name → its argument, handler and description."""
