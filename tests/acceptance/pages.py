"""The README and the pages as tests see them: their blocks, and a shell that runs `submit` lines in this process."""

from __future__ import annotations

import json
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner

from cantata.surfaces.cli.commands.batch import RUN, BatchGroup
from cantata.surfaces.cli.main import COMMANDS, submit
from tests.manifests import LOADER

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]

PROJECTS = {f"docs/{name}.md" for name in ("tutorial-celery", "django", "flask", "testing", "python-workflows")}
"""Pages whose blocks are one project of a user, which a test of their own runs."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[((?:`[^`]*`|[^]`])*)\]\([^)]*\)")
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |#|\s*\||<)")
_CELL = re.compile(r"(?<!\\)\||; ")
_SENTENCE = re.compile(r"(?<=[.!?:])[*)]*\s+(?=[`*\"'(]*[A-Z0-9`])")
_NAMES = re.compile(r"`[^`]*`(?:(?:,| or| and) `[^`]*`)*")
_FILE = re.compile(r"# (\S+\.(?:py|ya?ml|txt))\n")
_ANSWER = re.compile(r"\s*# → (.*)$", re.MULTILINE)
_STATUS = re.compile(r"# exit status (\d+)")
_TARGET = re.compile(r" > ([a-z./]+)")
_ASSIGNED = re.compile(r"(\w+)=\$\((.*)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is to be, if its first line is a comment that names one."""
        named = _FILE.match(self.text)
        return named.group(1) if named else None

    @property
    def answer(self) -> str | None:
        """What comes out, if its last line is a comment that says so: `# → 3`."""
        found = _ANSWER.search(self.text)
        return found.group(1) if found else None

    @cached_property
    def _data(self) -> Any:
        return yaml.load(self.text, LOADER)

    @property
    def is_chain(self) -> bool:
        """Whether it is a chain request."""
        return self.language == "yaml" and "nodes" in self._data

    @property
    def is_configuration(self) -> bool:
        """Whether it is a configuration."""
        return self.language == "yaml" and not self.is_chain and not self.is_script

    @property
    def is_script(self) -> bool:
        """Whether it is a script of a scripted model: a list of rules."""
        return self.language == "yaml" and isinstance(self._data, list)

    @property
    def is_run(self) -> bool:
        """Whether its lines can be run here: they are ours, and need no machines that a test has not."""
        return all(words(line)[0] in ("submit", "python") for line in lines(self))

    @property
    def is_of_project(self) -> bool:
        """Whether it is a part of a user's project."""
        return self.page in PROJECTS


def blocks() -> list[Block]:
    """The blocks of all pages, in order."""
    return [block for page in PAGES for block in _blocks(page)]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(str(page.relative_to(TOP)), text.count("\n", 0, found.start()) + 1, found.group(1), found.group(2))


def long_sentences(text: str, max_words: int) -> list[str]:
    """The sentences of a page with more words than this; a list of names counts as one word."""
    text = _LINK.sub(r"\1", _BLOCK.sub("", text))
    parts = [
        part
        for each in _PARAGRAPH.split(text)
        for part in (_CELL.split(each) if each.lstrip().startswith("|") else [each])
    ]
    sentences = [sentence for part in parts for sentence in _SENTENCE.split(part)]
    return [" ".join(each.split()) for each in sentences if len(_NAMES.sub("name", each).split()) > max_words]


def lines(block: Block) -> list[str]:
    """The command lines of a block, without those that only say something."""
    return [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]


def words(line: str) -> list[str]:
    """The words of a command line, without its comment and the file that its output goes to."""
    assigned = _ASSIGNED.match(line)
    found = shlex.split(assigned.group(2) if assigned else line, comments=True)
    return found[: found.index(">")] if ">" in found else found


def value(text: str) -> object:
    """What a text says: JSON, or itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.strip()


def parse(arguments: list[str]) -> None:
    """Have `submit` read its arguments, and do nothing. Raises click.UsageError."""
    command: click.Command = submit
    rest = arguments if arguments[0] in COMMANDS else ["turn", *arguments]
    while isinstance(command, click.Group):
        name, *rest = rest
        if isinstance(command, BatchGroup) and name not in command.commands:
            name, rest = RUN, [name, *rest]
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"there is no command {name!r}")
        command = found
    command.make_context("submit", rest)


class Shell:
    """Runs the lines of a block, as `sh` would, in the working directory."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}

    def run(self, line: str) -> None:
        """Run `submit ...`, `name=$(submit ...)` or `python ...`, and hold it to what its comment says of answer and status."""
        command, *arguments = [string.Template(word).safe_substitute(self._variables) for word in words(line)]
        answer, status, assigned = _ANSWER.search(line), _STATUS.search(line), _ASSIGNED.match(line)

        exit_status, out, errors = _COMMANDS[command](arguments)

        assert exit_status == (int(status.group(1)) if status else 0), f"{line}\n{out}{errors}"
        assert "Traceback" not in out + errors
        if answer:
            assert value(out) == value(answer.group(1)), line
        if assigned:
            self._variables[assigned.group(1)] = out.strip()
        if target := _TARGET.search(line):
            Path(target.group(1)).write_text(out)


def _submit(arguments: list[str]) -> tuple[int, str, str]:
    done = CliRunner().invoke(submit, arguments)
    return done.exit_code, done.stdout, done.stderr


def _python(arguments: list[str]) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


_COMMANDS = {"submit": _submit, "python": _python}
