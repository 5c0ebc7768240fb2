"""The memory of a process that runs functions, as the environment says it."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata_workers.process import resource_limits

VARIABLE = "CANTATA_TOOL_MEMORY_MB"


def test_nothing_is_bounded_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")

    assert (resource_limits.recycle_above_kb(), resource_limits.limit_note()) == (None, "")


def test_a_child_is_large_above_three_quarters_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "400")

    assert resource_limits.recycle_above_kb() == 300 * 1024
    assert resource_limits.limit_note() == "; the limit of its process is 400 MB (CANTATA_TOOL_MEMORY_MB)"


@pytest.mark.parametrize("text", ["lots", "-5", "1e3", "127"])
def test_a_limit_that_is_none_or_leaves_no_room_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)

    with pytest.raises(ConfigError, match=VARIABLE):
        resource_limits.recycle_above_kb()
