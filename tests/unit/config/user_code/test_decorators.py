"""What `@tool` says is read from the text of a module; nothing is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cantata.config.documents import parse
from cantata.config.native import load_definitions
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, Tool

DECORATED = """
import functools
import cantata
import cantata as score
from langchain.tools import tool as other
from cantata import tool
from cantata.config.user_code import tool_decorator
from cantata.config.user_code.tool_decorator import tool as mark

LIMIT = 3

@tool
def bare(): ...

@functools.cache
@tool(queue="gpu", timeout_s=2.5, retries=-0, cheap=None, name="anything", description="Draws "
      "well.")
def draw(): ...

@score.tool(at_most_once=True, hidden=("user_id", "day"))
async def charge(user_id, cents, *, day="today"): ...

@cantata.tool(retries=1)
def one(): ...

@mark(retries=2)
def two(): ...

@tool_decorator.tool(retries=3)
def three(): ...

@other(retries=4)
def foreign(): ...

wrapped = tool(retries=5)(print)

@tool(timeout_s=LIMIT * 2)
def counted(): ...

@tool(**LIMIT)
def spread(): ...

@tool(quue="gpu", timeout_s="long")
def misspelt(): ...

@tool(hidden=["limit"])
def searches(query, limit, **more): ...

def early(): ...
early = tool(retries=6)(early)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work_tools.py").write_text(DECORATED)
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
    assert one("work_tools:draw", folder, ", timeout_s: 9, queue: tools") == drawn.model_copy(update={"timeout_s": 9, "queue": "tools"})
    assert one("work_tools:bare", folder) == Tool(function="work_tools:bare")
    assert load("skills: {s: {function: 'work_tools:draw'}}", folder).skills["s"] == drawn


def test_what_the_code_hides_a_configuration_may_only_add_to(folder: Path) -> None:
    charge = one("work_tools:charge", folder, ", values: {user_id: ann, cents: 3}, hidden: [cents, day]")

    assert charge.at_most_once
    assert charge.hidden == ["user_id", "day", "cents"]


@pytest.mark.parametrize(("name", "retries"), [("one", 1), ("two", 2), ("three", 3), ("foreign", 0), ("wrapped", 5), ("early", 6)])
def test_the_decorator_is_known_by_its_import(folder: Path, name: str, retries: int) -> None:
    assert one(f"work_tools:{name}", folder).retries == retries


def test_a_function_is_followed_through_imports(folder: Path) -> None:
    assert one("pack:sketch", folder).queue == "gpu"
    assert one("pack:far", folder).queue == "tools"
    assert one("pack.inner:loop", folder).queue == "tools"
    assert one("json:loads", folder) == Tool(function="json:loads")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (
            "{function: 'work_tools:counted'}",
            ".function: @tool in work_tools.py line 37: 'timeout_s' is not a literal, and modules are not imported to evaluate it; "
            "write it in the configuration",
        ),
        (
            "{function: 'work_tools:spread', timeout_s: 3}",
            ".function: @tool in work_tools.py line 40: '**LIMIT' is not a literal, and modules are not imported to evaluate it; "
            "write it in the configuration",
        ),
        (
            "{function: 'work_tools:misspelt', timeout_s: 3}",
            ".function: @tool in work_tools.py line 43: unknown setting 'quue'; did you mean 'queue'?",
        ),
        (
            "{function: 'work_tools:draw', values: {colour: red}}",
            ".values: 'colour' is not a parameter of 'draw'",
        ),
        (
            "{function: 'work_tools:charge', hidden: [cent], values: {user_id: a}}",
            ".hidden: 'cent' is not a parameter of 'charge'; did you mean 'cents'?",
        ),
        ("{function: 'work_tools:charge'}", ": the hidden parameter 'user_id' has no default; give it under 'values'"),
        ("{function: 'work_tools:searches'}", ": the hidden parameter 'limit' has no default; give it under 'values'"),
        (
            "{function: 'work_tools:charge', values: {user_id: a}, retries: 2}",
            ": 'at_most_once' means that a call is never repeated; leave 'retries' out",
        ),
        (
            "{function: 'work_tools:bare', parameters: {type: array}}",
            ": 'parameters' is the JSON schema of an object: {type: object, properties: {...}}",
        ),
        (
            "{function: 'work_tools:searches', values: {limit: 3}, parameters: {type: object, properties: {limit: {}}}}",
            ": 'limit' is hidden from models, but 'parameters' shows it",
        ),
        (
            "{mcp: {command: [x]}, values: {a: 1}}",
            ": 'values' belongs to a function; an 'mcp' server declares the parameters of its tools itself",
        ),
        (
            "{function: 'work_tools:searches', values: {limit: 1, api_key: x}}",
            ".values: 'api_key' does not belong in a configuration, which is stored with every run; set it in the environment",
        ),
    ],
)
def test_what_cannot_be_used_is_told(folder: Path, entry: str, fault: str) -> None:
    assert faults_of(f"tools:\n  t: {entry}\n", folder) == [f"line 2: tools.t{fault}"]


def test_the_configuration_may_say_what_the_decorator_says_unreadably(folder: Path) -> None:
    assert one("work_tools:counted", folder, ", timeout_s: 7").timeout_s == 7


def test_sections_that_are_no_sections_are_told_as_ever(folder: Path) -> None:
    assert faults_of("tools: [{function: 'work_tools:draw'}]", folder) == ["line 1: tools: expected a mapping, found a list"]
    assert faults_of("tools: {t: {function: ':draw', hidden: x}}", folder)[0].startswith("line 1: tools.t.")


def test_nothing_is_imported(folder: Path) -> None:
    before = set(sys.modules)

    one("work_tools:draw", folder)
    one("pack:sketch", folder)

    assert set(sys.modules) == before
