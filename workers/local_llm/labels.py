"""Chooses among labels by how likely the model finds each, instead of letting it write: a small model scores far better than it writes.

The model reads examples as `Request: ... / Category: ...` pairs and is asked how likely each label is as the next category. From that its
liking for a label as such is taken, which is its score on inputs without content. The examples are dealt into three prompts of different
wording, and the scores added up: a model this small learns more from one example a label than from many, and reads them sooner.

A label is scored where labels part: at each such point, by the share of the token that leads to it. Labels that begin alike cost one more
request a fork. Standing letters (A, B, C) for labels, which would spare these, are no better than chance.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import Any, cast

from pydantic import JsonValue

Ask = Callable[[str, Mapping[str, JsonValue]], Awaitable[JsonValue]]
"""Posts a body to a path of the model server and gives the JSON that comes back."""

Messages = Sequence[Mapping[str, JsonValue]]
Tokens = tuple[int, ...]

CONTENT_FREE = ("N/A", "", "something", "the")
WORDINGS = ("Request: {}\nCategory:", "Message: {}\nTopic:", "{}\nKeyword:")
BIAS = 100.0  # lifts the asked tokens above all others alike, so that their probabilities are their shares among themselves
LEAST = 1e-38  # a share that the server rounds to 0
REMEMBERED = 64  # label prompts whose likings are kept


@dataclass(frozen=True)
class Field:
    """What a schema of one enum asks for: one of `labels`, as the only property `name`, or bare if there is no name."""

    labels: tuple[str, ...]
    name: str | None = None

    @classmethod
    def of(cls, schema: Mapping[str, JsonValue]) -> Field | None:
        """The field that a JSON schema consists of; None if it is any other schema."""
        if _is_enum(schema):
            return cls(_labels(schema))
        match schema:
            case {"type": "object", "properties": dict(properties)} if len(properties) == 1:
                ((name, inner),) = properties.items()
                enum = _resolve(inner, schema)
                return cls(_labels(enum), name) if _is_enum(enum) and schema.get("required") == [name] else None
        return None

    def to_json(self, label: str) -> str:
        """The answer with this label, as the schema wants it."""
        return json.dumps(label if self.name is None else {self.name: label}, ensure_ascii=False)

    def read(self, text: str) -> str | None:
        """The label in an answer, bare or as the schema wants it; None if there is none."""
        said: JsonValue = text.strip()
        if said not in self.labels:
            try:
                said = json.loads(text)
            except json.JSONDecodeError:
                return None
        if isinstance(said, dict):
            said = said.get(self.name or "")
        return said if isinstance(said, str) and said in self.labels else None


@dataclass(frozen=True)
class Question:
    """A text to label, and what stands before it under each wording."""

    labels: tuple[str, ...]
    heads: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, asked: Field, messages: Messages) -> Question:
        """The last user message is the text; earlier turns answered by a label are the examples, else the system message has to do."""
        turns = [(str(message.get("role")), str(message.get("content") or "")) for message in messages]
        text = next((content for role, content in reversed(turns) if role == "user"), "")
        examples = [(told, label) for (role, told), (answered_by, answer) in pairwise(turns)
                    if (role, answered_by) == ("user", "assistant") and (label := asked.read(answer)) is not None]  # fmt: skip
        if examples:
            return cls(asked.labels, tuple(_shown(*each) for each in zip(WORDINGS, _deal(examples), strict=True)), text)
        rules = "\n".join(content for role, content in turns if role == "system")
        return cls(asked.labels, (f"{rules}\n\nLabels: {', '.join(asked.labels)}.\n\n".lstrip(),) * len(WORDINGS), text)

    def prompts(self) -> list[str]:
        """The prompts whose next words are the text's label."""
        return [head + wording.format(self.text) for head, wording in zip(self.heads, WORDINGS, strict=True)]


@dataclass(frozen=True)
class Choice:
    """The label that was chosen, and what that cost."""

    label: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Fork:
    """A point where labels part: the tokens that led there, and which labels each next token leads to."""

    path: Tokens
    branches: Mapping[int, tuple[int, ...]]


class Chooser:
    """Answers questions; remembers how labels are spelt in tokens and how much the model likes them under the same examples."""

    def __init__(self) -> None:
        self._forks: dict[tuple[str, ...], list[Fork]] = {}
        self._likings: dict[Question, list[float]] = {}
        self._turns: dict[Question, asyncio.Lock] = {}

    async def choose(self, question: Question, ask: Ask) -> Choice:
        """The label that fits best."""
        meter = _Meter(ask)
        if question.labels not in self._forks:
            self._forks[question.labels] = forks(await asyncio.gather(*(meter.tokens(_close(label)) for label in question.labels)))
        liking = await self._liking(replace(question, text=""), meter)
        scores = await self._score(question, meter)
        best = max(range(len(scores)), key=lambda number: scores[number] - liking[number])
        return Choice(question.labels[best], meter.input_tokens, meter.output_tokens)

    async def _liking(self, question: Question, meter: _Meter) -> list[float]:
        """The mean score of each label on inputs without content; worked out once, however many ask."""
        async with self._turns.setdefault(question, asyncio.Lock()):
            if (known := self._likings.get(question)) is not None:
                return known
            # One after the other, so that each finds the examples read by the one before.
            scores = [await self._score(replace(question, text=text), meter) for text in CONTENT_FREE]
            found = self._likings[question] = [sum(each) / len(each) for each in zip(*scores, strict=True)]
            if len(self._likings) > REMEMBERED:
                oldest = next(iter(self._likings))
                del self._likings[oldest], self._turns[oldest]
            return found

    async def _score(self, question: Question, meter: _Meter) -> list[float]:
        """The log-probability of each label, added up over the prompts."""
        scores = [0.0] * len(question.labels)
        for fork in self._forks[question.labels]:
            for shares in await meter.shares(question.prompts(), fork):
                for token, labels in fork.branches.items():
                    for label in labels:
                        scores[label] += log(max(shares.get(token, 0.0), LEAST))
        return scores


def forks(spellings: Sequence[Tokens], path: Tokens = (), among: Sequence[int] | None = None) -> list[Fork]:
    """Where labels part, given their tokens; none may be the beginning of another."""
    numbers = range(len(spellings)) if among is None else among
    if len(numbers) < 2:
        return []
    branches: dict[int, list[int]] = {}
    for number in numbers:
        branches.setdefault(spellings[number][len(path)], []).append(number)
    here = [Fork(path, {token: tuple(labels) for token, labels in branches.items()})] if len(branches) > 1 else []
    return here + [fork for token, labels in branches.items() for fork in forks(spellings, (*path, token), labels)]


class _Meter:
    """Asks the model server, and counts the tokens."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.input_tokens = 0
        self.output_tokens = 0

    async def tokens(self, text: str) -> Tokens:
        said = cast("dict[str, list[int]]", await self._ask("/tokenize", {"content": text}))
        return tuple(said["tokens"])

    async def shares(self, prompts: Sequence[str], fork: Fork) -> list[dict[int, float]]:
        """For each prompt, followed by the fork's path: the probability of each branch's token, among these alone."""
        body: dict[str, JsonValue] = {
            "prompt": [[prompt, *fork.path] if fork.path else prompt for prompt in prompts],
            "n_predict": 1, "n_probs": len(fork.branches), "post_sampling_probs": True, "samplers": [],
            "logit_bias": [[token, BIAS] for token in fork.branches],
            "cache_prompt": True, "response_fields": ["completion_probabilities", "tokens_evaluated"],
        }  # fmt: skip
        said = await self._ask("/completion", body)
        replies = cast("list[dict[str, Any]]", said if isinstance(said, list) else [said])
        self.input_tokens += sum(reply["tokens_evaluated"] for reply in replies)
        self.output_tokens += len(replies)
        return [{each["id"]: each["prob"] for each in reply["completion_probabilities"][0]["top_probs"]} for reply in replies]


def _deal(examples: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The examples as a hand for each wording, with every label in each, again where there are too few; each ends with another label."""
    by_label: dict[str, list[str]] = {}
    for text, label in examples:
        by_label.setdefault(label, []).append(text)
    hands, many = [], len(WORDINGS)
    for number in range(many):
        hand = [(text, label) for label, texts in by_label.items() for text in texts[number::many] or [texts[number % len(texts)]]]
        cut = number * len(hand) // many
        hands.append([*hand[cut:], *hand[:cut]])
    return hands


def _shown(wording: str, hand: Sequence[tuple[str, str]]) -> str:
    return "".join(wording.format(text) + _close(label) for text, label in hand)


def _close(label: str) -> str:
    return f" {label}\n\n"  # the end is part of the spelling, so that no label is the beginning of another


def _is_enum(schema: object) -> bool:
    labels = schema.get("enum") if isinstance(schema, Mapping) else None
    return isinstance(labels, list) and len(labels) > 0 and all(isinstance(label, str) for label in labels)


def _labels(schema: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cast("Mapping[str, list[str]]", schema)["enum"]))


def _resolve(schema: JsonValue, root: Mapping[str, JsonValue]) -> JsonValue:
    """What a `$ref` to a definition of the same schema stands for; pydantic writes one for each Enum."""
    match schema:
        case {"$ref": str(reference)}:
            definitions = root.get("$defs")
            return definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
    return schema
