"""Messages to a model between its rounds."""

from __future__ import annotations


def rounds_exhausted(max_rounds: int) -> str:
    """Return the message that no more tools may be called."""
    return f"You have used all {max_rounds} rounds of tool calls, and no more can follow. Give your final answer now, from what you know."


def steps_exhausted(max_steps: int) -> str:
    """Return the message that no more steps follow."""
    return f"You have used all {max_steps} steps. Give your final answer now, from what you know, without calling a tool."


def empty_reply() -> str:
    """Return the message after a reply without text and calls."""
    return "Your reply was empty. Call a tool, or give your final answer."


def correction(message: str) -> str:
    """Return the message after a reply that does not have the required form."""
    return f"Your reply cannot be used: {message}\nReply again in full, with this corrected."
