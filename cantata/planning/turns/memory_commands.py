"""Commands to the memory bank as lines of a text, and the lines that answer them. Source: PromptChain's memory functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORD = "MEMORY"
"""What a command begins with, in any case."""


@dataclass(frozen=True, slots=True)
class Store:
    """`MEMORY STORE key=value`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Get:
    """`MEMORY GET key`."""

    key: str


@dataclass(frozen=True, slots=True)
class List:
    """`MEMORY LIST`."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that begins as a command and is none."""

    fault: str


Command = Store | Get | List | Malformed


def parse(text: str) -> list[str | Command]:
    """The lines of a trimmed text: commands, and texts that pass unchanged. Only the very start of a line counts."""
    return [_command(line) if line[: len(WORD)].upper() == WORD else line for line in text.strip().split("\n")]


def stored(key: str) -> str:
    """What answers `STORE`."""
    return f"Stored '{key}' in memory"


def got(key: str, value: str | None) -> str:
    """What answers `GET`."""
    return f"{key} = {'Not found' if value is None else value}"


def listed(keys: Sequence[str]) -> str:
    """What answers `LIST`."""
    return f"Memory keys: {', '.join(keys) or 'none'}"


def failed(fault: str) -> str:
    """What answers a command that cannot be done."""
    return f"Memory error: {fault}"


def _command(line: str) -> Command:
    word, verb, argument = (*line.split(maxsplit=2), "", "")[:3]
    argument = " ".join(argument.split())
    if len(word) > len(WORD):
        return Malformed(f"{word!r} is no command; write {WORD} and a space before the verb")
    match verb.upper():
        case "STORE":
            return _store(argument)
        case "GET":
            return Get(argument) if argument else Malformed("GET needs a key: MEMORY GET key")
        case "LIST":
            return List()
        case "":
            return Malformed("there is no verb; use STORE, GET or LIST")
    return Malformed(f"there is no verb {verb!r}; use STORE, GET or LIST")


def _store(argument: str) -> Command:
    key, equals, value = argument.partition("=")
    if not equals:
        return Malformed(f"STORE needs key=value, not {argument!r}" if argument else "STORE needs key=value")
    if not key.strip():
        return Malformed(f"STORE needs a key before the '=' of {argument!r}")
    return Store(key.strip(), value.strip())
