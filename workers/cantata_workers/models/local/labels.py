"""Classification by scoring labels with token probabilities; a small model scores labels far better than it generates them.

The score of a label is the sum of two terms:

- Its log-probability as the next topic after `Message: ... / Topic: ...` pairs, one for each label; a model this small learns less from
  more examples. The label's prior, which is its score on texts without content, is subtracted.
- The similarity of what the model expects there to the tokens of the label's examples; here every example counts. It takes no evaluation of
  its own: the probabilities of these tokens come with those of the labels.

Measured with SmolLM2-135M on six sets of 5 or 6 labels and 3 or 4 examples a label: the first alone 143 of 180 right, both 162. Comparing
with what the model expects after each example gives 161, and takes four times as long for the first text, twice for each other.

A label is scored where the token sequences of labels diverge: at each such fork, by the share of the token that leads to it. Labels with a
common beginning cost one more request for each fork. Letters (A, B, C) in place of labels would avoid these, but are no better than chance.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import pairwise
from math import log, sqrt
from typing import Any, cast

from pydantic import JsonValue

Ask = Callable[[str, Mapping[str, JsonValue]], Awaitable[JsonValue]]
"""Posts a body to a path of the model server and returns the JSON of the response."""
Messages = Sequence[Mapping[str, JsonValue]]
Examples = tuple[tuple[str, str], ...]
"""(text, label) pairs."""
Tokens = tuple[int, ...]
Profile = Mapping[int, float]
"""A value for each of some tokens."""

CONTENT_FREE = ("N/A", "", "something", "the")
SIMILARITY_WEIGHT = 12.0  # the weight of similarity 1, in logarithms of probability; any value from 8 to 15 works
MAX_PROFILE_TOKENS = 500  # those that tell the labels apart best; more make each request larger
LOGIT_BIAS = 100.0  # raises the requested tokens above all others equally, so that their probabilities are their shares among themselves
MIN_SHARE = 1e-38  # a share that the server rounds to 0
MAX_CACHED_STATISTICS = 64  # sets of examples


@dataclass(frozen=True)
class EnumField:
    """A schema of one enum: the answer is one of `labels`, as the only property `name`, or bare if there is no name."""

    labels: tuple[str, ...]
    name: str | None = None

    @classmethod
    def of(cls, schema: Mapping[str, JsonValue]) -> EnumField | None:
        """Return the field that a JSON schema consists of; None if it is any other schema."""
        name: str | None = None
        field = cast(JsonValue, schema)
        match schema:
            case {"type": "object", "properties": dict(properties), "required": [str(required)]} if [*properties] == [
                required
            ]:
                name, field = required, properties[required]
        match field, schema:
            case {"$ref": str(reference)}, {"$defs": dict(definitions)} if (
                name is not None
            ):  # pydantic writes one for each Enum
                field = definitions.get(reference.removeprefix("#/$defs/"))
        match field:
            case {"enum": [_, *_] as labels} if all(isinstance(label, str) for label in labels):
                return cls(tuple(dict.fromkeys(map(str, labels))), name)
        return None

    def to_json(self, label: str) -> str:
        """Return the answer with this label in the form of the schema."""
        return json.dumps(label if self.name is None else {self.name: label}, ensure_ascii=False)

    def read(self, text: str) -> str | None:
        """Return the label in an answer, bare or in the form of the schema; None if there is none."""
        answer: JsonValue = text.strip()
        if answer not in self.labels:
            try:
                answer = json.loads(text)
            except json.JSONDecodeError:
                return None
        if isinstance(answer, dict):
            answer = answer.get(self.name or "")
        return answer if isinstance(answer, str) and answer in self.labels else None


@dataclass(frozen=True)
class LabelQuestion:
    """A text to label, the labels, and examples or rules for them."""

    labels: tuple[str, ...]
    text: str
    examples: Examples = ()
    rules: str = ""

    @classmethod
    def of(cls, requested: EnumField, messages: Messages) -> LabelQuestion:
        """Return the question in a chat: the last user message is the text; earlier turns answered with a label are the examples.

        Without such turns the system messages are the rules.
        """
        turns = [(str(message.get("role")), str(message.get("content") or "")) for message in messages]
        text = next((content for role, content in reversed(turns) if role == "user"), "")
        examples = tuple(
            (content, label)
            for (role, content), (answered_by, answer) in pairwise(turns)
            if (role, answered_by) == ("user", "assistant") and (label := requested.read(answer)) is not None
        )
        rules = "" if examples else "\n".join(content for role, content in turns if role == "system")
        return cls(requested.labels, text, examples, rules)

    def prompt(self) -> str:
        """Return the prompt after which the model continues with the text's label."""
        first = dict(reversed([(label, text) for text, label in self.examples]))
        shown = [(text, label) for text, label in self.examples if first[label] == text]
        topics = "" if shown else f"{self.rules}\n\nTopics: {', '.join(self.labels)}.\n\n".lstrip()
        return (
            topics
            + "".join(_prompt_opening(text) + _label_ending(label) for text, label in shown)
            + _prompt_opening(self.text)
        )


@dataclass(frozen=True)
class LabelChoice:
    """The chosen label, and the tokens that the choice took."""

    label: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class TokenFork:
    """A point where labels diverge: the tokens that lead there, and the labels (by index) behind each next token."""

    path: Tokens
    branches: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Expectation:
    """The log-probability of each label after a text, and those of the examples' tokens."""

    fits: list[float]
    expected: Profile


@dataclass(frozen=True)
class LabelStatistics:
    """Forks, profiles and priors of labels, which do not depend on the text."""

    forks: list[TokenFork]
    profiles: Mapping[str, Profile]
    prior: Expectation

    def scores(self, labels: Sequence[str], found: Expectation) -> list[float]:
        """Return the score of each label."""
        unusual = direction({token: value - self.prior.expected[token] for token, value in found.expected.items()})
        return [
            fit
            - prior
            + SIMILARITY_WEIGHT * sum(unusual[token] * value for token, value in self.profiles.get(label, {}).items())
            for label, fit, prior in zip(labels, found.fits, self.prior.fits, strict=True)
        ]


class LabelScorer:
    """Chooses labels. Texts are evaluated one after the other, so that each request finds the prompt before it in the server's cache."""

    def __init__(self) -> None:
        self._statistics: dict[LabelQuestion, LabelStatistics] = {}
        self._measuring, self._evaluating = asyncio.Lock(), asyncio.Lock()

    async def choose(self, question: LabelQuestion, ask: Ask) -> LabelChoice:
        """Return the label with the highest score; cache the statistics of recent sets of labels."""
        client = _MeteredClient(ask, self._evaluating)
        subject = replace(question, text="")
        if (statistics := self._statistics.get(subject)) is None:
            async with self._measuring:
                if (statistics := self._statistics.get(subject)) is None:
                    statistics = self._statistics[subject] = await _measure(subject, client)
                    if len(self._statistics) > MAX_CACHED_STATISTICS:
                        del self._statistics[next(iter(self._statistics))]
        found = await _evaluate(question, statistics.forks, statistics.profiles, client)
        scores = statistics.scores(question.labels, found)
        return LabelChoice(question.labels[scores.index(max(scores))], client.input_tokens, client.output_tokens)


async def _measure(subject: LabelQuestion, client: _MeteredClient) -> LabelStatistics:
    parting = forks([await client.tokens([_label_ending(label)]) for label in subject.labels])
    texts: dict[str, list[JsonValue]] = {}
    for text, label in subject.examples:
        texts.setdefault(label, []).append(text)
    profiles = profiles_of({label: await client.tokens(each) for label, each in texts.items()})
    found = [await _evaluate(replace(subject, text=text), parting, profiles, client) for text in CONTENT_FREE]
    fits = [sum(each) / len(found) for each in zip(*(each.fits for each in found), strict=True)]
    expected = {token: sum(each.expected[token] for each in found) / len(found) for token in found[0].expected}
    return LabelStatistics(parting, profiles, Expectation(fits, expected))


async def _evaluate(
    question: LabelQuestion, parting: Sequence[TokenFork], profiles: Mapping[str, Profile], client: _MeteredClient
) -> Expectation:
    fits, expected = [0.0] * len(question.labels), dict.fromkeys(next(iter(profiles.values()), {}), 0.0)
    for fork in parting:
        shares = await client.shares(
            question.prompt(), fork.path, fork.branches.keys() | (expected.keys() if fork is parting[0] else ())
        )
        if fork is parting[0]:
            expected = {token: log(shares[token]) for token in expected}
        total = sum(shares[token] for token in fork.branches)
        for token, labels in fork.branches.items():
            for label in labels:
                fits[label] += log(shares[token] / total)
    return Expectation(fits, expected)


def forks(spellings: Sequence[Tokens], path: Tokens = (), among: Sequence[int] | None = None) -> list[TokenFork]:
    """Return the points where labels diverge, given their tokens; no label may be a prefix of another."""
    numbers = range(len(spellings)) if among is None else among
    if len(numbers) < 2:
        return []
    branches: dict[int, list[int]] = {}
    for number in numbers:
        branches.setdefault(spellings[number][len(path)], []).append(number)
    here = [TokenFork(path, {token: tuple(labels) for token, labels in branches.items()})] if len(branches) > 1 else []
    return here + [fork for token, labels in branches.items() for fork in forks(spellings, (*path, token), labels)]


class _MeteredClient:
    """Requests token probabilities from the model server, and counts the tokens."""

    def __init__(self, ask: Ask, evaluating: asyncio.Lock) -> None:
        self._ask = ask
        self._evaluating = evaluating
        self.input_tokens = 0
        self.output_tokens = 0

    async def tokens(self, texts: list[JsonValue]) -> Tokens:
        """Return the tokens of texts."""
        reply = cast("dict[str, list[int]]", await self._ask("/tokenize", {"content": texts}))
        return tuple(reply["tokens"])

    async def shares(self, prompt: str, path: Tokens, among: Collection[int]) -> dict[int, float]:
        """Return the probability of each of some tokens after the prompt and the path, among these tokens only."""
        body: dict[str, JsonValue] = {
            "prompt": [prompt, *path] if path else prompt, "n_predict": 1, "samplers": [], "cache_prompt": True,
            "logit_bias": [[token, LOGIT_BIAS] for token in among], "n_probs": len(among), "post_sampling_probs": True,
            "response_fields": ["completion_probabilities", "tokens_evaluated"],
        }  # fmt: skip
        async with self._evaluating:
            reply = cast("dict[str, Any]", await self._ask("/completion", body))
        self.input_tokens += reply["tokens_evaluated"]
        self.output_tokens += 1
        found = {each["id"]: each["prob"] for each in reply["completion_probabilities"][0]["top_probs"]}
        return {token: max(found.get(token, 0.0), MIN_SHARE) for token in among}


def _prompt_opening(text: str) -> str:
    return f"Message: {text}\nTopic:"


def _label_ending(label: str) -> str:
    return f" {label}\n\n"  # the end is part of the tokens, so that no label is a prefix of another


def profiles_of(examples: Mapping[str, Tokens]) -> Mapping[str, Profile]:
    """Return the profile of each label by the tokens of its examples: the direction in which their frequencies differ from the mean."""
    counts = {label: Counter(tokens) for label, tokens in examples.items()}
    shares = {
        label: {token: number / count.total() for token, number in count.items()} for label, count in counts.items()
    }
    every = {
        token: [share.get(token, 0.0) for share in shares.values()] for count in counts.values() for token in count
    }
    means = {
        token: sum(every[token]) / len(shares)
        for token in nlargest(MAX_PROFILE_TOKENS, every, lambda token: max(every[token]) - min(every[token]))
    }
    return {
        label: direction({token: share.get(token, 0.0) - mean for token, mean in means.items()})
        for label, share in shares.items()
    }


def direction(profile: Profile) -> Profile:
    """Return a profile of mean 0 and length 1."""
    mean = sum(profile.values()) / max(1, len(profile))
    length = sqrt(sum((value - mean) ** 2 for value in profile.values())) or 1.0
    return {token: (value - mean) / length for token, value in profile.items()}
