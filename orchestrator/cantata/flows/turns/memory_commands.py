"""Commands to the memory bank in lines of a text, and the replies to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORD = "MEMORY"
"""The first word of a command, in upper or lower case."""


@dataclass(frozen=True, slots=True)
class StoreCommand:
    """`MEMORY STORE key=value`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class GetCommand:
    """`MEMORY GET key`."""

    key: str


@dataclass(frozen=True, slots=True)
class ListCommand:
    """`MEMORY LIST`."""


@dataclass(frozen=True, slots=True)
class MalformedCommand:
    """A line that begins like a command but is invalid."""

    fault: str


MemoryCommand = StoreCommand | GetCommand | ListCommand | MalformedCommand


def parse(text: str) -> list[str | MemoryCommand]:
    """Return the lines of a trimmed text: commands, and texts that stay unchanged. A command starts at the first character of a line."""
    return [_command(line) if line[: len(WORD)].upper() == WORD else line for line in text.strip().split("\n")]


def store_reply(key: str) -> str:
    """Return the reply to `STORE`."""
    return f"Stored '{key}' in memory"


def get_reply(key: str, value: str | None) -> str:
    """Return the reply to `GET`."""
    return f"{key} = {'Not found' if value is None else value}"


def list_reply(keys: Sequence[str]) -> str:
    """Return the reply to `LIST`."""
    return f"Memory keys: {', '.join(keys) or 'none'}"


def error_reply(fault: str) -> str:
    """Return the reply to a command that failed."""
    return f"Memory error: {fault}"


def _command(line: str) -> MemoryCommand:
    word, verb, argument = (*line.split(maxsplit=2), "", "")[:3]
    argument = " ".join(argument.split())
    if len(word) > len(WORD):
        return MalformedCommand(f"{word!r} is no command; write {WORD} and a space before the verb")
    match verb.upper():
        case "STORE":
            return _store(argument)
        case "GET":
            return GetCommand(argument) if argument else MalformedCommand("GET needs a key: MEMORY GET key")
        case "LIST":
            return ListCommand()
        case "":
            return MalformedCommand("there is no verb; use STORE, GET or LIST")
    return MalformedCommand(f"there is no verb {verb!r}; use STORE, GET or LIST")


def _store(argument: str) -> MemoryCommand:
    key, equals, value = argument.partition("=")
    if not equals:
        return MalformedCommand(f"STORE needs key=value, not {argument!r}" if argument else "STORE needs key=value")
    if not key.strip():
        return MalformedCommand(f"STORE needs a key before the '=' of {argument!r}")
    return StoreCommand(key.strip(), value.strip())
