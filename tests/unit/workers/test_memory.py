"""The memory of a process that runs functions, as the environment says it."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError
from workers import memory


def test_nothing_is_bounded_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.VARIABLE, "")

    assert (memory.limit_mb(), memory.large_kb(), memory.said()) == (None, None, "")


def test_a_child_is_large_above_three_quarters_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.VARIABLE, "400")

    assert memory.large_kb() == 300 * 1024
    assert memory.said() == "; its process may have 400 MB (CANTATA_TOOL_MEMORY_MB)"


@pytest.mark.parametrize("text", ["lots", "-5", "1e3", "127"])
def test_a_limit_that_is_none_or_leaves_no_room_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(memory.VARIABLE, text)

    with pytest.raises(ConfigError, match="must be a whole number of megabytes, 128 or more"):
        memory.limit_mb()
