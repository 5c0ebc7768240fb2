"""`python -m tests.acceptance.write_help`: writes what `submit ... --help` says into docs/cli.md, between its markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from cantata.surfaces.cli.main import submit

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
WIDTH = 78  # what click uses of a terminal of 80 columns or more
_MARKED = re.compile(r"<!-- (?P<command>submit[a-z ]*) --help -->\n.*?<!-- end -->", re.DOTALL)


def commands(group: click.Group = submit, name: str = "submit") -> Iterator[str]:
    """Every command, as it is typed."""
    yield name
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}")
        else:
            yield f"{name} {each}"


def help_of(command: str) -> str:
    """What a command says of itself."""
    _, *words = command.split()
    done = CliRunner().invoke(submit, [*words, "--help"], prog_name="submit", terminal_width=WIDTH)
    assert done.exit_code == 0, done.output
    return done.stdout


def shown(page: str) -> list[str]:
    """The commands whose help the page has a place for."""
    return [found["command"] for found in _MARKED.finditer(page)]


def written(page: str) -> str:
    """The page with the help as it is now."""
    return _MARKED.sub(lambda found: _block(found["command"]), page)


def _block(command: str) -> str:
    return f"<!-- {command} --help -->\n```text\n{help_of(command)}```\n<!-- end -->"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
