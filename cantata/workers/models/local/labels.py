"""Classification by scoring labels with token probabilities; a small model scores labels far better than it generates them.

The score of a label is the sum of two terms:

- Its log-probability as the next topic after `Message: ... / Topic: ...` pairs, one for each label; a model this small learns less from
  more examples. The label's prior, which is its score on texts without content, is subtracted.
- The similarity of the text to the label's examples, by the tokens that the model expects after `"..." This is about`; here every example
  counts.

Measured with SmolLM2-135M on sets of 5 and 6 labels and 3 or 4 examples a label: the first alone 128 of 164 right, both 139; a second
prompt with other examples would add 2, and take half as long again.

A label is scored where the token sequences of labels diverge: at each such fork, by the share of the token that leads to it. Labels with a
common beginning cost one more request for each fork. Letters (A, B, C) in place of labels would avoid these, but are no better than chance.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
"""The tokens that a model expects after a text, each with the logarithm of its probability relative to the least likely of them."""

CONTENT_FREE = ("N/A", "", "something", "the")
SIMILARITY_WEIGHT = 3.0  # the weight of similarity 1, in logarithms of probability; any value from 2 to 4 works
PROFILE_TOKENS = 500  # likeliest next tokens that make up the profile of a text
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
            case {"type": "object", "properties": dict(properties), "required": [str(required)]} if [*properties] == [required]:
                name, field = required, properties[required]
        match field, schema:
            case {"$ref": str(reference)}, {"$defs": dict(definitions)} if name is not None:  # pydantic writes one for each Enum
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
        examples = tuple((content, label) for (role, content), (answered_by, answer) in pairwise(turns)
                         if (role, answered_by) == ("user", "assistant") and (label := requested.read(answer)) is not None)  # fmt: skip
        rules = "" if examples else "\n".join(content for role, content in turns if role == "system")
        return cls(requested.labels, text, examples, rules)

    def prompt(self) -> str:
        """Return the prompt after which the model continues with the text's label."""
        first = dict(reversed([(label, text) for text, label in self.examples]))
        shown = [(text, label) for text, label in self.examples if first[label] == text]
        topics = "" if shown else f"{self.rules}\n\nTopics: {', '.join(self.labels)}.\n\n".lstrip()
        return topics + "".join(_prompt_opening(text) + _label_ending(label) for text, label in shown) + _prompt_opening(self.text)


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
class LabelStatistics:
    """Forks, priors and profiles of labels, which do not depend on the text."""

    forks: list[TokenFork]
    priors: list[float]
    profiles: LabelProfiles


class LabelScorer:
    """Chooses labels; caches the statistics of recent sets of labels."""

    def __init__(self) -> None:
        self._statistics: dict[LabelQuestion, LabelStatistics] = {}
        self._locks: dict[LabelQuestion, asyncio.Lock] = {}

    async def choose(self, question: LabelQuestion, ask: Ask) -> LabelChoice:
        """Return the label with the highest score."""
        client = _MeteredClient(ask)
        statistics = await self._statistics_of(replace(question, text=""), client)
        texts = [question.text] if question.examples else []
        fits, profiles = await asyncio.gather(_fits(question, statistics.forks, client), client.profiles(texts))
        scores = [
            fit - prior + SIMILARITY_WEIGHT * sum(statistics.profiles.similarity(profile, label) for profile in profiles)
            for label, fit, prior in zip(question.labels, fits, statistics.priors, strict=True)
        ]
        return LabelChoice(question.labels[scores.index(max(scores))], client.input_tokens, client.output_tokens)

    async def _statistics_of(self, subject: LabelQuestion, client: _MeteredClient) -> LabelStatistics:
        """Return the statistics of labels; concurrent callers share one computation."""
        async with self._locks.setdefault(subject, asyncio.Lock()):
            if (known := self._statistics.get(subject)) is None:
                known = self._statistics[subject] = await _measure(subject, client)
            if len(self._statistics) > MAX_CACHED_STATISTICS:
                oldest = next(iter(self._statistics))
                del self._statistics[oldest]
                self._locks.pop(oldest, None)
            return known


async def _measure(subject: LabelQuestion, client: _MeteredClient) -> LabelStatistics:
    parting = forks(await asyncio.gather(*(client.tokens(_label_ending(label)) for label in subject.labels)))
    # One after the other, so that each request finds the prompt of the one before in the server's cache.
    fits = [await _fits(replace(subject, text=text), parting, client) for text in CONTENT_FREE]
    priors = [sum(each) / len(each) for each in zip(*fits, strict=True)]
    profiles = await client.profiles([text for text, _ in subject.examples])
    return LabelStatistics(
        parting, priors, LabelProfiles.of([(label, profile) for (_, label), profile in zip(subject.examples, profiles, strict=True)])
    )


async def _fits(question: LabelQuestion, parting: Sequence[TokenFork], client: _MeteredClient) -> list[float]:
    """Return the log-probability of each label."""
    fits = [0.0] * len(question.labels)
    for fork in parting:
        shares = await client.shares(question.prompt(), fork)
        for token, labels in fork.branches.items():
            for label in labels:
                fits[label] += log(max(shares.get(token, 0.0), MIN_SHARE))
    return fits


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

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.input_tokens = 0
        self.output_tokens = 0

    async def tokens(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        reply = cast("dict[str, list[int]]", await self._ask("/tokenize", {"content": text}))
        return tuple(reply["tokens"])

    async def shares(self, prompt: str, fork: TokenFork) -> dict[int, float]:
        """Return the probability of each branch's token after the prompt and the fork's path, among these tokens only."""
        requested: JsonValue = [prompt, *fork.path] if fork.path else prompt
        bias: list[JsonValue] = [[token, LOGIT_BIAS] for token in fork.branches]
        (reply,) = await self._next([requested], {"n_probs": len(fork.branches), "post_sampling_probs": True, "logit_bias": bias})
        return {each["id"]: each["prob"] for each in reply["top_probs"]}

    async def profiles(self, texts: Sequence[str]) -> list[Mapping[int, float]]:
        """Return the profile of each text."""
        replies = await self._next([f'"{text}"\nThis is about' for text in texts], {"n_probs": PROFILE_TOKENS}) if texts else []
        return [profile_of({each["id"]: each["logprob"] for each in reply["top_logprobs"]}) for reply in replies]

    async def _next(self, prompts: list[JsonValue], options: Mapping[str, JsonValue]) -> list[dict[str, Any]]:
        """Return the probabilities of the next token after each prompt."""
        body: dict[str, JsonValue] = {
            "prompt": prompts, "n_predict": 1, "samplers": [], "cache_prompt": True,
            "response_fields": ["completion_probabilities", "tokens_evaluated"], **options,
        }  # fmt: skip
        reply = await self._ask("/completion", body)
        replies = cast("list[dict[str, Any]]", reply if isinstance(reply, list) else [reply])
        self.input_tokens += sum(reply["tokens_evaluated"] for reply in replies)
        self.output_tokens += len(replies)
        return [reply["completion_probabilities"][0] for reply in replies]


def _prompt_opening(text: str) -> str:
    return f"Message: {text}\nTopic:"


def _label_ending(label: str) -> str:
    return f" {label}\n\n"  # the end is part of the tokens, so that no label is a prefix of another


def profile_of(log_probabilities: Mapping[int, float]) -> Profile:
    """Return the profile of a text, from the log-probabilities of the likeliest next tokens."""
    least = min(log_probabilities.values(), default=0.0)
    return {token: value - least for token, value in log_probabilities.items()}


@dataclass(frozen=True)
class LabelProfiles:
    """The profiles of labelled examples: their mean, and for each label the direction of its examples from that mean."""

    common: Profile
    directions: Mapping[str, Profile]

    @classmethod
    def of(cls, examples: Sequence[tuple[str, Profile]]) -> LabelProfiles:
        """Return the profiles of examples given as (label, profile)."""
        common = _sum([profile for _, profile in examples], 1 / max(1, len(examples)))
        apart: dict[str, list[Profile]] = {}
        for label, profile in examples:
            apart.setdefault(label, []).append(_deviation(profile, common))
        return cls(common, {label: _unit(_sum(profiles)) for label, profiles in apart.items()})

    def similarity(self, profile: Profile, label: str) -> float:
        """Return the cosine similarity of a text to a label's examples, from -1 to 1; 0 for a label without examples."""
        here, there = _deviation(profile, self.common), self.directions.get(label, {})
        return sum(value * there.get(token, 0.0) for token, value in here.items())


def _deviation(profile: Profile, common: Profile) -> Profile:
    """Return the direction in which a profile differs from the common one, over the tokens of the common one only."""
    return _unit({token: profile.get(token, 0.0) - value for token, value in common.items()})


def _sum(profiles: Sequence[Profile], factor: float = 1.0) -> Profile:
    total: dict[int, float] = {}
    for profile in profiles:
        for token, value in profile.items():
            total[token] = total.get(token, 0.0) + value * factor
    return total


def _unit(profile: Profile) -> Profile:
    length = sqrt(sum(value * value for value in profile.values())) or 1.0
    return {token: value / length for token, value in profile.items()}
