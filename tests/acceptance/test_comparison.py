"""docs/comparison.md names a command that `./run bench` takes, all that it measures, and the versions that it installs."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.pages import TOP
from tests.bench.__main__ import options_of
from tests.bench.comparison import FIGURES
from tests.bench.rivals import DURABLE

PAGE = (TOP / "docs" / "comparison.md").read_text("utf-8")


def test_the_command_of_the_page_measures_the_comparison() -> None:
    commands = re.findall(r"`\./run bench (.*?)`", PAGE)

    assert commands
    for command in commands:
        options = options_of(command.split())
        assert options.code
        assert options.peers


@pytest.mark.parametrize("figure", FIGURES)
def test_the_table_has_each_figure_that_is_measured(figure: str) -> None:
    assert re.search(rf"^\| {re.escape(figure)} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("pinned", sorted({pin for peer in DURABLE for pin in (*peer.packages, *peer.npm)}))
def test_the_page_names_the_versions_that_are_installed(pinned: str) -> None:
    name, version = re.fullmatch(r"(@?[^[=@]+)(?:\[\w+\])?(?:==|@)(.+)", pinned, re.ASCII).groups()  # type: ignore[union-attr]  # it is one

    assert f"`{name}` {version}" in PAGE
