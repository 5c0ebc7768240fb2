"""How alike texts are, judged by the words that a model expects after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

Sense = Mapping[int, float]
"""What a model expects after a text: tokens, and how much likelier each is than the least of them (logarithm)."""


def sense_of(log_probabilities: Mapping[int, float]) -> Sense:
    """The sense of a text, from the log-probabilities of the likeliest next tokens."""
    least = min(log_probabilities.values(), default=0.0)
    return {token: value - least for token, value in log_probabilities.items()}


@dataclass(frozen=True)
class Senses:
    """The senses of labelled examples: what they have in common, and in which direction each label lies from there."""

    common: Sense
    directions: Mapping[str, Sense]

    @classmethod
    def of(cls, examples: Sequence[tuple[str, Sense]]) -> Senses:
        """From examples as (label, sense)."""
        common = _sum([sense for _, sense in examples], 1 / max(1, len(examples)))
        apart: dict[str, list[Sense]] = {}
        for label, sense in examples:
            apart.setdefault(label, []).append(_apart(sense, common))
        return cls(common, {label: _unit(_sum(senses)) for label, senses in apart.items()})

    def likeness(self, sense: Sense, label: str) -> float:
        """How like a label's examples a text is, from -1 to 1; 0 for a label without examples."""
        here, there = _apart(sense, self.common), self.directions.get(label, {})
        return sum(value * there.get(token, 0.0) for token, value in here.items())


def _apart(sense: Sense, common: Sense) -> Sense:
    """The direction in which a sense differs from the common one, in the tokens of that alone."""
    return _unit({token: sense.get(token, 0.0) - value for token, value in common.items()})


def _sum(senses: Sequence[Sense], factor: float = 1.0) -> Sense:
    total: dict[int, float] = {}
    for sense in senses:
        for token, value in sense.items():
            total[token] = total.get(token, 0.0) + value * factor
    return total


def _unit(sense: Sense) -> Sense:
    length = sqrt(sum(value * value for value in sense.values())) or 1.0
    return {token: value / length for token, value in sense.items()}
