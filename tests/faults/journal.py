"""Keeps what really happened in an append-only file outside Redis: a JSON object a line, each in one write, so that no kill can tear it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from cantata.values import Value

What = Literal["accepted", "start", "finish", "asked", "frozen", "killed"]


class Line(Value):
    """Something that happened: a run was accepted, a tool started or finished, a model was asked, a process froze or was killed."""

    what: What
    at: float
    """Seconds since 1970 by this machine's clock, which is Redis's too."""
    run_id: str = ""
    step_id: str = ""
    attempt: int = 0
    pid: int = 0
    tag: str = ""
    """Of the run that was accepted, or that a model was asked for."""
    shape: str = ""
    expected: JsonValue = None
    """The output that an accepted run must give."""
    agent: str = ""
    """On whose behalf a model was asked."""
    round: int = 0
    """For which of the agent's turns, from 0, by what came back for the calls before it; -1 if that is none."""
    about_tokens: int = 0
    """By what a budget is charged at most for asking, if the worker hangs up before the reply has come: providers tell nothing then."""
    until: float = 0.0
    """When the process that froze went on."""


class Journal:
    """The lines of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, what: What, **fields: JsonValue) -> None:
        """Append a line, of now."""
        line = json.dumps({"what": what, "at": time.time(), **fields}) + "\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def lines(self) -> list[Line]:
        """All lines, in order."""
        return [Line.model_validate_json(text) for text in self.path.read_text().splitlines()]

    def of(self, what: What, run_id: str | None = None) -> list[Line]:
        """The lines of one sort, of one run if it is given, in order."""
        return [line for line in self.lines() if line.what == what and run_id in (None, line.run_id)]
