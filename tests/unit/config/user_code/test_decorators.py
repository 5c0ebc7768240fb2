"""What `@tool` says is read from the text of a module; nothing is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cantata.config.documents import parse
from cantata.config.native import load_definitions
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, Tool
from tests.unit.config.sample_tools import DECORATED_MODULE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work_tools.py").write_text(DECORATED_MODULE)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from .inner import drawn as sketch\nfrom ...beyond import far\n")
    (tmp_path / "pack" / "inner.py").write_text("from work_tools import draw as drawn\nfrom pack import loop\n")
    return tmp_path


def load(text: str, folder: Path) -> Definitions:
    return load_definitions(parse(text), folder=folder)


def one(function: str, folder: Path, more: str = "") -> Tool:
    return load(f"tools: {{t: {{function: '{function}'{more}}}}}", folder).tools["t"]


def faults_of(text: str, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder)
    return [str(fault) for fault in caught.value.faults]


def test_settings_are_defaults_of_the_configuration(folder: Path) -> None:
    drawn = Tool(function="work_tools:draw", queue="gpu", timeout_s=2.5, description="Draws well.")

    assert one("work_tools:draw", folder) == drawn
    assert one("work_tools:draw", folder, ", timeout_s: 9, queue: tools") == drawn.model_copy(
        update={"timeout_s": 9, "queue": "tools"}
    )
    assert one("work_tools:bare", folder) == Tool(function="work_tools:bare")
    assert load("skills: {s: {function: 'work_tools:draw'}}", folder).skills["s"] == drawn


def test_what_the_code_hides_a_configuration_may_only_add_to(folder: Path) -> None:
    charge = one("work_tools:charge", folder, ", values: {user_id: ann, cents: 3}, hidden: [cents, day]")

    assert charge.at_most_once
    assert charge.hidden == ["user_id", "day", "cents"]


@pytest.mark.parametrize(
    ("name", "retries"), [("one", 1), ("two", 2), ("three", 3), ("foreign", 0), ("wrapped", 5), ("early", 6)]
)
def test_the_decorator_is_known_by_its_import(folder: Path, name: str, retries: int) -> None:
    assert one(f"work_tools:{name}", folder).retries == retries


def test_a_function_is_followed_through_imports(folder: Path) -> None:
    assert one("pack:sketch", folder).queue == "gpu"
    assert one("pack:far", folder).queue == "tools"
    assert one("pack.inner:loop", folder).queue == "tools"
    assert one("json:loads", folder) == Tool(function="json:loads")


def test_the_configuration_may_say_what_the_decorator_says_unreadably(folder: Path) -> None:
    assert one("work_tools:counted", folder, ", timeout_s: 7").timeout_s == 7


def test_sections_that_are_no_sections_are_told_as_ever(folder: Path) -> None:
    assert faults_of("tools: [{function: 'work_tools:draw'}]", folder) == [
        "line 1: tools: expected a mapping, found a list"
    ]
    assert faults_of("tools: {t: {function: ':draw', hidden: x}}", folder)[0].startswith("line 1: tools.t.")


def test_nothing_is_imported(folder: Path) -> None:
    before = set(sys.modules)

    one("work_tools:draw", folder)
    one("pack:sketch", folder)

    assert set(sys.modules) == before
