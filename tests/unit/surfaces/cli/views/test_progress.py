"""The line that shows what a command waits for."""

from __future__ import annotations

import io
import sys

import pytest

from cantata.surfaces.cli.views import progress
from cantata.surfaces.cli.views.progress import CLEAR, show_progress
from tests.waiting import until


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_takes_long_and_is_clean_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(progress, "PERIOD_S", 0.01)

    with show_progress("starting"):
        until(lambda: terminal.getvalue().count("starting …") > 1, "two lines")

    assert terminal.getvalue().endswith(CLEAR)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    monkeypatch.setattr(progress, "DELAY_S", 0.0)

    with show_progress("starting"):
        pass

    assert pipe.getvalue() == ""
