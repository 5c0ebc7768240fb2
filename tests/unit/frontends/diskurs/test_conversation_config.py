"""Configuration of conversations: the long-term memory of a conductor, and the bounds of an agent."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata_frontends.diskurs.conversation_config import (
    FINALIZERS,
    CodeReference,
    ConversationAgent,
    ConversationConfig,
    PromptSource,
)

COMMON = CodeReference(file="memory.py", name="Common")


def conductor(**prompt: str) -> ConversationAgent:
    return ConversationAgent(kind="conductor", prompt=PromptSource.model_validate(prompt))


def test_a_conductor_has_its_own_memory_or_the_common_one_or_the_default_one() -> None:
    agents = {
        "own": conductor(file="own/prompt.py", memory="Own"),
        "common": conductor(file="b/prompt.py"),
        "none": conductor(memory="Own"),
    }
    config = ConversationConfig(first_contact="own", agents=agents, memory=COMMON)

    assert config.memory_of("own") == CodeReference(file="own/prompt.py", name="Own")
    assert [config.memory_of(name) for name in ("common", "none")] == [COMMON, COMMON]
    assert config.model_copy(update={"memory": None}).memory_of("common") is None


@pytest.mark.parametrize("field", ["max_reasoning_steps", "max_trials", "max_dispatches"])
def test_a_turn_has_bounds_of_at_least_one(field: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ConversationAgent.model_validate({"kind": "multistep", field: 0})


def test_only_known_algorithms_are_kinds_and_two_of_them_finalize() -> None:
    assert {ConversationAgent(kind=kind).kind for kind in FINALIZERS} == {"multistep_finalizer", "heuristic_finalizer"}
    with pytest.raises(ValidationError, match="Input should be 'conductor'"):
        ConversationAgent.model_validate({"kind": "conducter"})
