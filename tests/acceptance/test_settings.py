"""The page of settings says what the models say, and the models know every variable that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cantata.errors import ConfigError
from cantata.settings import VARIABLES, settings
from tests.acceptance import write_settings

ROOT = Path(__file__).parents[2]
OF_OURS_ALONE = {
    "CANTATA_FAULT",
    "CANTATA_GENERATION",
    "CANTATA_LISTEN_FD",
    "CANTATA_QUIET",
    "CANTATA_READY_FD",
    "CANTATA_STACK_PID",
    "CANTATA_STANDBY",
    "CANTATA_VIRTUAL_TIME",
    "CANTATA_WORKER",
}
"""Between our own processes and tests: nobody sets them by hand."""


def test_the_page_is_as_the_models_are() -> None:
    assert write_settings.PAGE.read_text("utf-8") == write_settings.written(), (
        "run: python -m tests.acceptance.write_settings"
    )


def test_every_setting_says_what_it_means() -> None:
    assert write_settings.undescribed() == []


def test_links_within_the_page_lead_somewhere() -> None:
    page = write_settings.written()

    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= write_settings.anchors(page)


def test_every_variable_that_is_read_is_a_setting() -> None:
    sources = [*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bCANTATA_[A-Z_]*[A-Z]\b", path.read_text("utf-8"))}

    assert read - OF_OURS_ALONE == VARIABLES.keys() - {"REDIS_URL"}


def test_every_wrong_variable_is_named_at_once_and_its_value_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_DRAIN_S", "secret-six")
    monkeypatch.setenv("CANTATA_LOG_LEVEL", "loud")

    with pytest.raises(ConfigError) as caught:
        settings()

    assert [fault.where for fault in caught.value.faults] == ["CANTATA_LOG_LEVEL", "CANTATA_DRAIN_S"]
    assert "secret-six" not in str(caught.value)


def test_a_variable_that_is_set_to_nothing_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_DRAIN_S", " ")
    monkeypatch.setenv("CANTATA_LOG_LEVEL", "info")

    assert (settings().drain_s, settings().log_level) == (6.0, "INFO")
