"""Slash commands of a chat."""

from __future__ import annotations

import pytest

from cantata.surfaces.chat.slash_commands import COMMANDS, SlashCommand, help_text, parse_command


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/help", SlashCommand("help", "")),
        (" /HISTORY 5 ", SlashCommand("history", "5")),
        ("/memory set city New York", SlashCommand("memory", "set city New York")),
        ("/nonsense", SlashCommand("nonsense", "")),
        ("hello /help", None),
        ("/etc/passwd is a file", None),
        ("/", None),
    ],
)
def test_a_line_is_a_command_if_it_is_a_slash_and_a_word(line: str, command: SlashCommand | None) -> None:
    assert parse_command(line) == command


def test_help_names_every_command() -> None:
    assert [name for name in COMMANDS if f"/{name}" not in help_text()] == []
