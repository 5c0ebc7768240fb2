"""Tools, functions, chainbreakers and answers of the agents that are tested."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel, Field

from cantata import ToolContext

PATIENCE_S = 40.0


def price(item: str, count: int = 1) -> dict[str, object]:
    """What so many of a thing cost.

    Args:
        item: its name
        count: how many
    """
    return {"item": item, "total": 2.5 * count}


def meet(folder: str, mark: str, others: list[str]) -> str:
    """Come back when the others have come too, which they only can at the same time."""
    Path(folder, mark).touch()
    give_up = time.monotonic() + PATIENCE_S
    while not all(Path(folder, other).exists() for other in others):
        if time.monotonic() > give_up:
            raise RuntimeError("nobody came")
        time.sleep(0.01)
    return f"met {', '.join(others)}"


def leak() -> None:
    """Fail, and tell a secret."""
    raise RuntimeError(f"the key {os.environ['OPENAI_API_KEY']} is wrong")


# Functions among instructions


def shout(text: str) -> str:
    return text.upper()


async def count(text: str) -> int:
    return len(text)


def nothing() -> str:
    return "out of nothing"


def only_by_place(text: str, /) -> str:
    return f"<{text}>"


def quote(mark: str, text: str, *, end: str = "") -> str:
    return f"{mark}{text}{mark}{end}"


def remember(text: str, context: ToolContext) -> str:
    context.memory.store_memory("seen", text, context.run_id)
    return text


def broken(text: str) -> str:
    raise ValueError(f"no {text}")


# Chainbreakers


def second(step: int, output: str) -> tuple[bool, str, str | None]:
    return step == 2, "two are enough", None


def second_with_words(step: int, output: str, info: dict[str, object]) -> tuple[bool, str, str | None]:
    return step == 2, "enough", f"{info['step']} {info['type']} {info['input']} {output}"


def after(steps: int, step: int, output: str) -> tuple[bool, str, None]:
    return step >= steps, f"{steps} are enough", None


def third_time(step: int, output: str, context: ToolContext) -> tuple[bool, str, str]:
    """Counts its calls in the memory of the run's tenant."""
    calls = context.memory.append("calls", step, context.run_id)
    return calls == 3, "it was called three times", f"{context.memory.retrieve_memory('calls', context.run_id)}"


async def never(step: int, output: str) -> tuple[bool, str, str]:
    return False, "", "this is not used"


def of_one(step: int) -> tuple[bool, str, None]:
    return True, "wrong arity", None


def raising(step: int, output: str) -> tuple[bool, str, None]:
    raise KeyError("gone")


def malformed(step: int, output: str) -> object:
    return "stop"


def leaking(step: int, output: str) -> tuple[bool, str, None]:
    raise RuntimeError(f"the key {os.environ['OPENAI_API_KEY']} is wrong")


# Answers


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)
