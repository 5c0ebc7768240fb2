"""Similarity of texts, by the tokens that a model expects after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

Profile = Mapping[int, float]
"""The tokens that a model expects after a text, each with the logarithm of its probability relative to the least likely of them."""


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
