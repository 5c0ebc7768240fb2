"""Chooses among labels by what the model finds likely, instead of letting it write: a small model knows far more than it says.

Two things count for a label:

- How likely it is as the next topic after `Message: ... / Topic: ...` pairs, one a label; a model this small learns less from more
  examples. From that goes the model's liking for the label as such: its score on texts without content.
- How like its examples the text is, by the words the model expects after `"..." This is about`; for this every example counts.

Measured with SmolLM2-135M on sets of 5 and 6 labels and 3 or 4 examples a label: the first alone 128 of 164 right, both 139; a second
prompt with other examples would add 2, and half the time again.

A label is scored where labels part: at each such point, by the share of the token that leads to it. Labels that begin alike cost one more
request a fork. Standing letters (A, B, C) for labels, which would spare these, are no better than chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from typing import Any, cast

from pydantic import JsonValue

from cantata.workers.models.local.enum_fields import Field
from cantata.workers.models.local.similarity import Senses, sense_of

Ask = Callable[[str, Mapping[str, JsonValue]], Awaitable[JsonValue]]
"""Posts a body to a path of the model server and gives the JSON that comes back."""

Messages = Sequence[Mapping[str, JsonValue]]
Examples = tuple[tuple[str, str], ...]
"""Texts with their labels."""
Tokens = tuple[int, ...]

CONTENT_FREE = ("N/A", "", "something", "the")
LIKENESS = 3.0  # what full likeness weighs, in logarithms of probability; anything from 2 to 4 does
SENSE_TOKENS = 500  # likeliest next tokens that make up the sense of a text
BIAS = 100.0  # lifts the asked tokens above all others alike, so that their probabilities are their shares among themselves
LEAST = 1e-38  # a share that the server rounds to 0
REMEMBERED = 64  # sets of examples


@dataclass(frozen=True)
class Question:
    """A text to label, and what is known about the labels."""

    labels: tuple[str, ...]
    text: str
    examples: Examples = ()
    rules: str = ""

    @classmethod
    def of(cls, asked: Field, messages: Messages) -> Question:
        """The last user message is the text; earlier turns answered by a label are the examples, else the system message has to do."""
        turns = [(str(message.get("role")), str(message.get("content") or "")) for message in messages]
        text = next((content for role, content in reversed(turns) if role == "user"), "")
        examples = tuple((told, label) for (role, told), (answered_by, answer) in pairwise(turns)
                         if (role, answered_by) == ("user", "assistant") and (label := asked.read(answer)) is not None)  # fmt: skip
        rules = "" if examples else "\n".join(content for role, content in turns if role == "system")
        return cls(asked.labels, text, examples, rules)

    def prompt(self) -> str:
        """The prompt whose next words are the text's label."""
        first = dict(reversed([(label, text) for text, label in self.examples]))
        shown = [(text, label) for text, label in self.examples if first[label] == text]
        topics = "" if shown else f"{self.rules}\n\nTopics: {', '.join(self.labels)}.\n\n".lstrip()
        return topics + "".join(_open(text) + _close(label) for text, label in shown) + _open(self.text)


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


@dataclass(frozen=True)
class Lesson:
    """What the model's numbers tell about labels before there is a text."""

    forks: list[Fork]
    likings: list[float]
    senses: Senses


class Chooser:
    """Answers questions; remembers what it learnt from examples."""

    def __init__(self) -> None:
        self._lessons: dict[Question, Lesson] = {}
        self._turns: dict[Question, asyncio.Lock] = {}

    async def choose(self, question: Question, ask: Ask) -> Choice:
        """The label that fits best."""
        meter = _Meter(ask)
        lesson = await self._lesson(replace(question, text=""), meter)
        texts = [question.text] if question.examples else []
        fits, senses = await asyncio.gather(_fits(question, lesson.forks, meter), meter.senses(texts))
        scores = [
            fit - liking + LIKENESS * sum(lesson.senses.likeness(sense, label) for sense in senses)
            for label, fit, liking in zip(question.labels, fits, lesson.likings, strict=True)
        ]
        return Choice(question.labels[scores.index(max(scores))], meter.input_tokens, meter.output_tokens)

    async def _lesson(self, subject: Question, meter: _Meter) -> Lesson:
        """What is to be known about the labels; worked out once, however many ask."""
        async with self._turns.setdefault(subject, asyncio.Lock()):
            if (known := self._lessons.get(subject)) is None:
                known = self._lessons[subject] = await _learn(subject, meter)
            if len(self._lessons) > REMEMBERED:
                oldest = next(iter(self._lessons))
                del self._lessons[oldest]
                self._turns.pop(oldest, None)
            return known


async def _learn(subject: Question, meter: _Meter) -> Lesson:
    parting = forks(await asyncio.gather(*(meter.tokens(_close(label)) for label in subject.labels)))
    # One after the other, so that each finds the examples read by the one before.
    fits = [await _fits(replace(subject, text=text), parting, meter) for text in CONTENT_FREE]
    likings = [sum(each) / len(each) for each in zip(*fits, strict=True)]
    senses = await meter.senses([text for text, _ in subject.examples])
    return Lesson(parting, likings, Senses.of([(label, sense) for (_, label), sense in zip(subject.examples, senses, strict=True)]))


async def _fits(question: Question, parting: Sequence[Fork], meter: _Meter) -> list[float]:
    """The log-probability of each label."""
    fits = [0.0] * len(question.labels)
    for fork in parting:
        shares = await meter.shares(question.prompt(), fork)
        for token, labels in fork.branches.items():
            for label in labels:
                fits[label] += log(max(shares.get(token, 0.0), LEAST))
    return fits


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
    """Asks the model server for numbers, and counts the tokens."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.input_tokens = 0
        self.output_tokens = 0

    async def tokens(self, text: str) -> Tokens:
        """How a text is spelt."""
        said = cast("dict[str, list[int]]", await self._ask("/tokenize", {"content": text}))
        return tuple(said["tokens"])

    async def shares(self, prompt: str, fork: Fork) -> dict[int, float]:
        """The probability of each branch's token after the prompt and the fork's path, among these alone."""
        asked: JsonValue = [prompt, *fork.path] if fork.path else prompt
        bias: list[JsonValue] = [[token, BIAS] for token in fork.branches]
        (reply,) = await self._next([asked], {"n_probs": len(fork.branches), "post_sampling_probs": True, "logit_bias": bias})
        return {each["id"]: each["prob"] for each in reply["top_probs"]}

    async def senses(self, texts: Sequence[str]) -> list[Mapping[int, float]]:
        """What is expected after each text."""
        replies = await self._next([f'"{text}"\nThis is about' for text in texts], {"n_probs": SENSE_TOKENS}) if texts else []
        return [sense_of({each["id"]: each["logprob"] for each in reply["top_logprobs"]}) for reply in replies]

    async def _next(self, prompts: list[JsonValue], options: Mapping[str, JsonValue]) -> list[dict[str, Any]]:
        """The probabilities of the next token after each prompt."""
        body: dict[str, JsonValue] = {
            "prompt": prompts, "n_predict": 1, "samplers": [], "cache_prompt": True,
            "response_fields": ["completion_probabilities", "tokens_evaluated"], **options,
        }  # fmt: skip
        said = await self._ask("/completion", body)
        replies = cast("list[dict[str, Any]]", said if isinstance(said, list) else [said])
        self.input_tokens += sum(reply["tokens_evaluated"] for reply in replies)
        self.output_tokens += len(replies)
        return [reply["completion_probabilities"][0] for reply in replies]


def _open(text: str) -> str:
    return f"Message: {text}\nTopic:"


def _close(label: str) -> str:
    return f" {label}\n\n"  # the end is part of the spelling, so that no label is the beginning of another
