"""Functions marked as tools stay functions, and their settings are checked at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantata import ConfigError, tool, tools_of
from cantata.config.user_code.tool_decorator import MARK, settings_of
from cantata.flows.definitions import Tool


@tool
def plain(text: str) -> str:
    return text


@tool(
    name="bill", queue="money", timeout_s=30, at_most_once=True, hidden=("user_id",), cheap=False, description="Bills."
)
def charge(user_id: str, cents: int) -> str:
    return f"{user_id} pays {cents}"


def test_a_marked_function_is_the_function() -> None:
    assert plain("a") == "a"
    assert charge("ann", cents=3) == "ann pays 3"
    assert getattr(plain, MARK) == {}
    assert settings_of(len) == {}


def test_definitions_in_python_have_the_settings_of_their_functions() -> None:
    assert tools_of(plain, charge, Path) == {
        "plain": Tool(function=f"{__name__}:plain"),
        "bill": Tool(
            function=f"{__name__}:charge",
            description="Bills.",
            queue="money",
            timeout_s=30,
            cheap=False,
            at_most_once=True,
            hidden=["user_id"],
        ),
        "Path": Tool(function=f"{Path.__module__}:Path"),
    }


def test_a_function_that_workers_cannot_find_is_refused() -> None:
    def inner() -> None: ...

    for function in (inner, lambda: None, Path.exists):
        with pytest.raises(ConfigError, match="cannot be found by the workers; define it at the top of a module"):
            tools_of(function)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout_s": -1}, "'charge': timeout_s: expected more than 0, found -1"),
        ({"retries": "many"}, "retries: expected a whole number, found 'many'"),
        ({"hidden": "user_id"}, "hidden: expected a list, found 'user_id'"),
        ({"hidden": ["usr_id"]}, "hidden 'usr_id' is not a parameter; did you mean 'user_id'?"),
        (
            {"at_most_once": True, "retries": 2},
            "'at_most_once' means that a call is never repeated; leave 'retries' out",
        ),
        ({"name": " "}, "name: expected a text that is not empty"),
    ],
)
def test_wrong_settings_are_told_when_the_function_is_made(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(**settings)(charge)

    assert said in str(caught.value)
