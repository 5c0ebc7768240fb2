"""Replies as providers document them, whole and streamed, are read through LiteLLM into the same rounds of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.flows.wire import RunResult, TurnRequest
from cantata.testing.inline import Runner
from cantata_workers.models import llm
from cantata_workers.models.dialects.conversation import ModelRound, ToolResult, conversation
from cantata_workers.models.llm.completions import request_of
from cantata_workers.models.llm.openai_messages import ToolNames
from tests.acceptance import write_replies
from tests.integration import model_upstream
from tests.integration.model_upstream import RESULT, Cell, Json, Upstream, has_part, read

ANSWER = "It is sunny in Paris."
CUT = "It is sunny"
THOUGHT = "I should look it up."
REFUSAL = "I cannot help with that."
CODES = {"refusal": "refusal", "filter": "content_filter"}
SECRETS = (THOUGHT, "SIG", "c2lnbmVk", "sealed", "c2VhbGVk")
"""What the replies have of reasoning."""
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
}


class Played(NamedTuple):
    """What came of a run of an agent whose provider gives the replies of a cell."""

    result: RunResult
    rounds: list[Any]
    """The output of each round."""
    details: list[Json]
    """What is recorded of each round beside its output, without times."""
    cities: list[str]
    """The cities of which it asked the weather."""
    requests: list[Json]
    """Without what asks for a stream."""


@pytest.fixture(scope="module")
def server() -> Iterator[Upstream]:
    with model_upstream.upstream() as server:
        yield server


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    llm.load()
    from litellm.llms.vertex_ai.vertex_llm_base import VertexBase  # noqa: PLC0415  # after `load`, which keeps it from the network

    async def signed_in(*_: object, **__: object) -> tuple[str, str]:
        return "token", "project"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            VertexBase, "_ensure_access_token_async", signed_in
        )  # google-auth is no dependency, and would ask Google
        yield Runner()


def play(runner: Runner, server: Upstream, cell: Cell, monkeypatch: pytest.MonkeyPatch, *, stream: bool) -> Played:
    """Run an agent whose provider gives the replies of a cell."""
    for name, value in cell.environment.items():
        monkeypatch.setenv(name, value.format(url=server.url))
    params = {
        name: value.format(url=server.url) if isinstance(value, str) else value for name, value in cell.params.items()
    }
    server.answer_with(cell)
    output = {"output": {"schema": SCHEMA}} if "structured" in cell.column else {}
    tools = ["get_weather"] if "tools" in cell.column else []
    agent = Agent.model_validate(
        {"model": cell.model, "params": params, "stream": stream, "retries": 0, "tools": tools, **output}
    )
    definitions = Definitions(agents={"a": agent}, tools={"get_weather": Tool(function="weather:get_weather")})
    cities: list[str] = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return RESULT

    result = runner.run(
        TurnRequest(text="Is it sunny in Paris?", agent="a"), None, {"get_weather": get_weather}, definitions, {}
    )
    assert isinstance(result, RunResult)
    steps = runner.client.run(result.run_id).record().steps
    rounds = [_without(step.output, "ms") for step in steps.values() if step.spec.kind == "agent.turn"]
    details = [
        _without(dict(step.info), "ms", "by", "request") for step in steps.values() if step.spec.kind == "agent.turn"
    ]
    ids = [call["id"] for each in rounds if isinstance(each, dict) for call in each.get("calls", ())]
    requests = [_without(each, "stream", "stream_options") for each in server.requests]
    return Played(result, _renamed(rounds, ids), _renamed(details, ids), cities, _renamed(requests, ids))


def _renamed(value: Any, ids: Sequence[str]) -> Any:
    """Return a value with numbers for the ids of calls: where a provider gives none, LiteLLM makes one at random."""
    text = json.dumps(value)
    for number, each in enumerate(ids):
        text = text.replace(each, f"id {number}")
    return json.loads(text)


def _without(value: Any, *names: str) -> Any:
    return {name: each for name, each in value.items() if name not in names} if isinstance(value, dict) else value


def check(cell: Cell, played: Played) -> None:
    """Assert that a run came to what its column promises."""
    result, code = played.result, played.result.error and played.result.error.code
    match cell.column:
        case "refusal" | "filter":
            assert (code, result.output) == (CODES[cell.column], None)
            assert cell.words in str(result.error)
        case "length":
            assert (result.output, played.details[0]["finish"]) == (CUT, "length")
            assert "is incomplete" in result.warnings[0]
        case "structured output" | "structured with tools":
            assert (result.output, code) == ({"city": "Paris", "celsius": 21}, None)
            assert has_part(played.requests[0], {"celsius": {"type": "integer"}}) or '\\"celsius\\"' in json.dumps(
                played.requests[0]
            )
        case _:
            assert (result.output, code) == (ANSWER, None)
    assert played.cities == cell.cities
    if cell.column == "reasoning with tools":
        assert played.details[0]["reasoning"].get("text", "") == cell.thought
        assert [part for part in cell.sent_back if not has_part(played.requests[1], part)] == []
        assert has_part(played.requests[1], RESULT) or RESULT in json.dumps(played.requests[1])


@pytest.mark.slow("LiteLLM is imported")
@pytest.mark.parametrize("cell", model_upstream.cells(), ids=str)
def test_a_reply(cell: Cell, runner: Runner, server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, streamed = (play(runner, server, cell, monkeypatch, stream=stream) for stream in (False, True))

    check(cell, whole)
    check(cell, streamed)
    assert streamed.requests == whole.requests
    if whole.result.error is None:
        assert (streamed.rounds, streamed.details, streamed.result.usage) == (
            whole.rounds,
            whole.details,
            whole.result.usage,
        )


@pytest.mark.parametrize("provider", model_upstream.providers())
def test_half_a_stream_is_no_answer(
    provider: str, runner: Runner, server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = model_upstream.cell(provider, "text")
    (turn,) = cell.turns
    half = replace(cell, turns=[{**turn, "stream": turn["stream"][: len(turn["stream"]) // 2], "is_cut": True}])

    result = play(runner, server, half, monkeypatch, stream=True).result

    if provider in (
        "gemini",
        "vertex",
    ):  # LiteLLM says `stop` at each of their chunks; the note of the table goes when it does not
        assert result.output == CUT
        return
    assert result.error is not None
    assert (result.error.code, result.output) == ("model_unavailable", None)


@pytest.mark.parametrize("provider", model_upstream.providers())
def test_reasoning_goes_to_no_other_provider_and_no_other_address(
    provider: str, runner: Runner, server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [cell for cell in model_upstream.cells() if cell.column == "reasoning with tools"]
    for cell in (each for each in reasons if each.provider == provider):
        played = play(runner, server, cell, monkeypatch, stream=True)
        first = ModelRound.read(json.dumps(played.rounds[0]), played.details[0])
        messages = conversation([{"role": "user", "content": "go"}], [first], [[ToolResult(RESULT)] * len(first.calls)])

        others = {(each.model, "") for each in reasons if each.provider != provider} | {
            (cell.model, "http://127.0.0.1:1/elsewhere")
        }
        for model, address in others:
            request = request_of(
                model, messages, {"api_base": address} if address else {}, ToolNames.of(["get_weather"])
            )

            assert [secret for secret in SECRETS if secret in json.dumps(request["messages"])] == []


def test_the_table_of_the_docs_is_that_of_these_replies() -> None:
    page = write_replies.PAGE.read_text("utf-8")

    assert page == write_replies.written(page), "run: python -m tests.acceptance.write_replies"


def test_each_file_names_its_source_and_has_no_column_that_nobody_knows() -> None:
    sources = {name: str(read(name)["source"]) for name in model_upstream.providers()}

    assert [
        name for name, source in sources.items() if not ("read 2026" in source or source.startswith("as Gemini"))
    ] == []
    assert {cell.column for cell in model_upstream.cells()} <= {*write_replies.COLUMNS}
