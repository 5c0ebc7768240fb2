"""The functions that chains of these tests name."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def shout(text: str) -> str:
    return text.upper()


async def whisper(text: str) -> str:
    return text.lower()


def constant() -> str:
    return "nothing of it"


def fail(text: str) -> str:
    raise ValueError(f"cannot read {text!r}")


def slow(text: str) -> str:
    """Writes into the journal that the text names when it starts and when it is done, four seconds later."""
    journal = Path(text)
    for what in ("start", "finish"):
        with journal.open("a") as file:
            file.write(json.dumps({"what": what, "name": "slow", "pid": os.getpid()}) + "\n")
        time.sleep(4 if what == "start" else 0)
    return "slow is done"


def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word} means something"


def stop_early(step: int, output: str) -> tuple[bool, str, str | None]:
    return "enough" in output, "it is enough", None


def stop_after(steps: int, step: int, output: str) -> tuple[bool, str, None]:
    return step >= steps, "enough", None


def replace(step: int, output: str, info: dict[str, object]) -> tuple[bool, str, str | None]:
    return info["type"] == "function", "a function ran", f"{step}: {output}!"
