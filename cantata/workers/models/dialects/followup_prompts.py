"""What a model is told between its rounds."""

from __future__ import annotations


def rounds_over(most: int) -> str:
    """It may call no more tools."""
    return f"You have used all {most} rounds of tool calls, and no more can follow. Give your final answer now, from what you know."


def steps_over(most: int) -> str:
    """It may think no more."""
    return f"You have used all {most} steps. Give your final answer now, from what you know, without calling a tool."


def nudge() -> str:
    """It neither called a tool nor said anything."""
    return "Your reply was empty. ParsedCall a tool, or give your final answer."


def correction(message: str) -> str:
    """Its reply is not what was asked for."""
    return f"Your reply cannot be used: {message}\nReply again in full, with this corrected."
