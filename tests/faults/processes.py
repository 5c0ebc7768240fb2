"""Finds processes, and tells which stand still. Linux only, as the suite is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cantata.values import JsonValue

Found = TypeVar("Found")


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, listed.read_text().split())
    return found


def family(pid: int) -> list[int]:
    """A process, and all that it and those started."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def is_frozen(pid: int) -> bool:
    """Whether it was stopped and not woken."""
    return _state(pid) == "T"


def is_alive(pid: int) -> bool:
    """Whether it runs, or could."""
    return _state(pid) not in ("", "Z", "X")


def pid_of(owner: JsonValue) -> int:
    """The process in the name of a step's owner: `tools@host#123~7` is 123."""
    return int(str(owner).partition("~")[0].rpartition("#")[2])


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
