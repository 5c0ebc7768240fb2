"""Completion in shells."""

from __future__ import annotations

import shutil

import pytest
from click.shell_completion import ShellComplete

from cantata.surfaces.cli.main import COMMANDS, submit
from tests.unit.surfaces.cli.invocation import run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_calls_submit(shell: str) -> None:
    if shell == "bash" and not shutil.which("bash"):
        pytest.skip("click asks bash for its version")

    assert f"_SUBMIT_COMPLETE={shell}_complete" in run("completion", shell).stdout


def completed(*words: str) -> list[str]:
    *before, last = words
    return [
        each.value for each in ShellComplete(submit, {}, "submit", "_SUBMIT_COMPLETE").get_completions(before, last)
    ]


def test_commands_and_options_are_completed() -> None:
    assert completed("ch") == ["chain", "chat", "check"]
    assert set(completed("")) == set(COMMANDS)
    assert completed("runs", "re") == ["result", "retry"]
    assert completed("schema", "c") == ["config", "chain"]
    assert "--config" in completed("check", "--c")
    assert completed("What is this?", "--his") == ["--history"]
