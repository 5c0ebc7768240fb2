"""Entries of the golden file of messages: a bad input in short, and what a check says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml

from cantata.errors import ConfigError

MAX_SHOWN = 400
"""Characters of an input that are shown; some inputs are bad because they are long."""

Input = TypeVar("Input")


class Entry(NamedTuple):
    """What users see of one bad input."""

    group: str
    given: str
    said: list[str]


def entries(
    groups: Mapping[str, Iterable[Input]], check: Callable[[Input], list[str]], show: Callable[[Input], str]
) -> Iterator[Entry]:
    """Check each input of a table, whose keys are the short names of its groups."""
    for group, inputs in groups.items():
        for given in inputs:
            yield Entry(group, show(given), check(given))


def said_by(check: Callable[[], object], *errors: type[Exception]) -> list[str]:
    """Return what a check says when it refuses its input: the faults of a ConfigError, else the text of the error."""
    try:
        check()
    except ConfigError as error:
        return [
            *([] if error.code == "bad_request" else [f"({error.code})"]),
            *(f"{_head(error)}{fault}" for fault in error.faults),
        ]
    except errors as error:
        return str(error).splitlines()
    return []


def text(given: str) -> str:
    """Return an input that is a text as it is, or as Python writes it if it cannot be seen as it is."""
    return given if given.strip() and given.replace("\n", "").replace("\t", "").isprintable() else repr(given)


def data(given: object) -> str:
    """Return data in a line."""
    try:
        shown = yaml.safe_dump(given, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError):
        return repr(given)
    line = shown.removesuffix("...\n").rstrip("\n")
    return repr(given) if "\n" in line else line


def without(folder: Path, said: list[str]) -> list[str]:
    """Return messages without the name of a folder of the moment."""
    return [each.replace(str(folder.resolve()), "{folder}").replace(str(folder), "{folder}") for each in said]


def written(found: Iterable[Entry]) -> Iterator[str]:
    """Return the entries of a room as text."""
    group = ""
    for entry in found:
        if entry.group != group:
            group = entry.group
            yield f"\n---------- {group}\n"
        shown = (
            entry.given
            if len(entry.given) <= MAX_SHOWN
            else f"{entry.given[:MAX_SHOWN]}... ({len(entry.given):,} characters)"
        )
        yield f"\n{shown.rstrip()}\n"
        yield from (f"    > {line}\n" for line in entry.said or ["(no fault)"])


def _head(error: ConfigError) -> str:
    return f"{error.source}: " if error.source else ""
