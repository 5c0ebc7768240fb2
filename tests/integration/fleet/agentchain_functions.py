"""The functions that the chains of agents of these tests name."""

from __future__ import annotations

import json


async def choose(user_input: str, history: list[dict[str, str]], agent_descriptions: dict[str, str]) -> str:
    """Chooses the agent whose description the text has a word of; tells what it was given in what that agent is asked."""
    chosen = next(
        (name for name, told in agent_descriptions.items() if set(told.split()) & set(user_input.split())), "nobody"
    )
    said = [f"{entry['role']}: {entry['content']}" for entry in history]
    return json.dumps({"chosen_agent": chosen, "refined_query": f"{user_input} after {said}"})


def choose_badly(user_input: str, history: list[dict[str, str]], agent_descriptions: dict[str, str]) -> str:
    """Chooses nobody there is."""
    return "the best one"


def is_a_sum(text: str) -> bool:
    """A rule of its own."""
    return "plus" in text


def shout(text: str) -> str:
    """A function between the texts of a chain."""
    return text.upper()
