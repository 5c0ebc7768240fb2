"""The examples of the four systems' own documents and repositories, as data: configuration and facts, transcribed.

Each file of a system's folder is one example:

    source: examples/first.yaml             # where it stands in the system's repository or documents
    files: {langswarm.yaml: "...", ...}     # as they are there; of prompts, what their form needs
    command: [turn, --workflow, main, tea]  # of `submit`, in the folder of the files; or [python, talk.py]
    model: [{match: tea, reply: hot}]       # rules of the scripted model (orchestrator/cantata/testing/rules.py); by default an echo
    answer: hot                             # what the command's `--json` has as its output; what a script prints
    warnings: [agents.0.nonsense]           # what `submit check` warns of: all of it

or, if it does not carry over, `refused: "a part of what is told"` in place of `answer`, and `because`, a sentence of the section
"Does not carry over" of the system's page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from cantata.values import Value
from tests.manifests import LOADER

FOLDER = Path(__file__).parent
TOP = FOLDER.parents[2]
PAGES = {"langswarm": "langswarm", "diskurs": "conductor", "promptchain": "promptchain", "a2e": "chains"}
"""System → its page in docs/."""


class Example(Value):
    """One example, and what becomes of it here."""

    system: str
    name: str
    source: str
    files: dict[str, str]
    command: tuple[str, ...] = ()
    model: tuple[dict[str, Any], ...] = ()
    answer: Any = None
    warnings: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict, description="variables that the files name")
    refused: str = ""
    because: str = ""
    checked: str = Field(default="", description="the file that `submit check` reads; by default the folder")

    @model_validator(mode="after")
    def _is_run_or_refused(self) -> Example:
        if bool(self.refused) != bool(self.because) or bool(self.refused) == (self.answer is not None):
            raise ValueError("either an answer, or what refuses it and because of what")
        return self

    def __str__(self) -> str:
        return f"{self.system}/{self.name}"


def examples(system: str) -> list[Example]:
    """Return the examples of a system, by name."""
    paths = sorted((FOLDER / system).rglob("*.yaml"))
    return [Example(system=system, name=path.stem, **yaml.load(path.read_text("utf-8"), LOADER)) for path in paths]
