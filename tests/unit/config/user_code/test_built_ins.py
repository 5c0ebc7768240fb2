"""Functions of ours that runs name: each name leads to a function, whatever version wrote it."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from cantata.config.user_code.built_ins import place_of
from cantata.config.user_code.function_source import definition_of, fault_of
from cantata.config.user_code.import_trials import failures_of
from cantata.config.user_code.modules import load_function

NAMES = sorted(name for each in entry_points(group="cantata.functions") for name in each.load())


@pytest.mark.parametrize("name", NAMES)
def test_each_name_leads_to_its_function(name: str) -> None:
    function = load_function(name, None)

    assert f"{function.__module__}:{function.__qualname__}" == place_of(name) != name
    assert fault_of(name, folder=None) is None
    assert definition_of(name, folder=None) is not None


def test_the_names_of_the_release_before_and_of_the_next_lead_to_the_same() -> None:
    assert "cantata.workers.tools.mcp:faults" in NAMES
    assert len({place_of(name) for name in NAMES}) * 2 == len(NAMES)


def test_a_trial_finds_them_and_other_names_stay_as_they_are() -> None:
    assert failures_of("", NAMES) == dict.fromkeys(NAMES)
    assert place_of("shop:price") == "shop:price"
    assert place_of("cantata.builtin:unknown") == "cantata.builtin:unknown"
