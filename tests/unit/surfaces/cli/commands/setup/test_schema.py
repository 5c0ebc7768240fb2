"""`submit schema`: JSON Schemas, which fit every file of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cantata.config.documents import parse
from tests.acceptance import write_schemas
from tests.unit.surfaces.cli.invocation import run

TOP = Path(__file__).parents[6]
MARK = "# yaml-language-server: $schema="
NAMED = [
    file
    for pattern in (
        "configs/**/*.yaml",
        "deploy/**/*.yaml",
        "orchestrator/cantata/surfaces/cli/new_project/**/*.yaml",
        "tests/**/*.yaml",
    )
    for file in sorted(TOP.glob(pattern))
    if file.read_text().startswith(MARK)
]


def faults(name: str, text: str) -> list[str]:
    schema = json.loads(run("schema", name).stdout)
    return [error.message for error in Draft202012Validator(schema).iter_errors(parse(text).data)]


def test_the_schemas_are_those_of_the_models() -> None:
    for path, text in write_schemas.files().items():
        assert path.read_text() == text, "python -m tests.acceptance.write_schemas"


@pytest.mark.parametrize("file", NAMED, ids=lambda file: str(file.relative_to(TOP)))
def test_files_fit_the_schema_that_they_name(file: Path) -> None:
    text = file.read_text()
    schema = Path(text.splitlines()[0].removeprefix(MARK)).name

    assert faults(schema.partition(".")[0], text) == []


def test_short_forms_fit_and_unknown_keys_do_not() -> None:
    text = """
agents:
  a: {instructions: ["one", [two, [search]], {objective: three}], chainbreakers: ["m:f"]}
teams: {t: {mode: round-robin, agents: [a]}}
schedules: {s: {every: 10m, turn: {text: hi}}}
"""
    assert faults("config", text) == []
    assert len(faults("config", "agents: {a: {instruction: [one]}}")) == 1
    assert faults("chain", "{version: 1.0, nodes: [{node_id: a, kind: tool, name: t}], entry_node: a}") == []
    assert faults("chain", "nodes: [{node_id: a, kind: tol}]") != []
