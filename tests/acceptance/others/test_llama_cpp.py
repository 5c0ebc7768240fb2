"""llama.cpp's own server, for the shapes of its replies: its model is too small to be right."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from tests.acceptance.neighbours.environments import TOP
from tests.acceptance.others.conftest import Ask
from tests.acceptance.others.servers import llama_server

pytestmark = [
    pytest.mark.thorough(
        "no other test calls a model server that somebody else wrote; the embedded model has an adapter of ours"
    ),
    pytest.mark.slow("a model of 135 million parameters writes on this processor"),
    pytest.mark.timeout(600),
]
BOTH = pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.whole)])
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """The configuration's models."""
    with llama_server(tmp_path_factory.mktemp("llama")) as url:
        yield {"llama": {"model": "openai/smollm2", "params": {"api_base": url, "max_tokens": 24, "temperature": 0}}}


@BOTH
def test_texts_arrive_with_their_usage(ask: Ask, models: dict[str, object], stream: bool) -> None:
    run = ask("Say hello.", models=models, stream=stream)

    assert run.result().output
    assert run.result().usage.input_tokens > 5
    assert 0 < run.result().usage.output_tokens <= 24


@BOTH
def test_an_answer_fits_its_schema(ask: Ask, models: dict[str, object], stream: bool) -> None:
    run = ask("Is the sky blue?", models=models, stream=stream, output={"schema": SCHEMA})

    output = run.result().output
    assert isinstance(output, dict)
    assert output["answer"] in ("yes", "no")


@BOTH
def test_tools_are_accepted_by_its_template_and_a_reply_arrives(
    ask: Ask, models: dict[str, object], stream: bool
) -> None:
    tools = {"add": {"function": "fleet_tools:add", "description": "Adds two numbers."}}

    run = ask("Add 1 and 2.", models=models, stream=stream, tools=tools, max_tool_rounds=1)

    assert run.result().status == "succeeded", run.result().error
    assert run.result().output


def test_the_page_names_the_version_that_is_run() -> None:
    assert f"`xllamacpp` {version('xllamacpp')}" in (TOP / "docs" / "models.md").read_text()
