"""What is told of a configuration before a command uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config import loading
from cantata.config.formats import Configuration
from cantata.errors import Fault
from cantata.flows.definitions import Definitions
from cantata.surfaces.cli import requests


@pytest.mark.parametrize("refused", [{}, {"flow": ["there is no agent 'bbo'"]}])
def test_chains_are_said_to_be_refused_only_if_some_are(
    refused: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.touch()
    found = Configuration(Definitions(refused=refused), faults=[Fault("it has no effect")])
    monkeypatch.setattr(loading, "load_sound", lambda path: found)

    requests.load_definitions(str(file))

    assert ("or are refused when they are called" in capsys.readouterr().err) is bool(refused)
