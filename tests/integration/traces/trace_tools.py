"""Tools of these tests."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)


def add(a: float, b: float = 1) -> float:
    """Add."""
    log.info("adding %s and %s", a, b)
    return a + b


def fail(message: str = "no luck") -> None:
    """Raise."""
    raise RuntimeError(message)


def die_once(mark: str) -> str:
    """Take the process down, but not a second time."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def heavy(megabytes: int = 400) -> int:
    """Use so much memory that the process is replaced afterwards."""
    block = bytearray(megabytes * 1_000_000)
    block[::4096] = b"x" * len(block[::4096])
    return len(block)


def slow(seconds: float) -> float:
    """Take some time."""
    time.sleep(seconds)
    return seconds


def speak(words: list[str]) -> str:
    """Print each word in a line of its own."""
    print(*words, sep="\n")  # noqa: T201  # what the test is about
    return words[-1]


def say(words: list[str], level: str = "info") -> int:
    """Log each word; one of them in a thread of its own, which has no step."""
    for word in words:
        log.log(logging.getLevelNamesMapping()[level.upper()], word)
    aside = threading.Thread(target=log.info, args=("said by nobody",))
    aside.start()
    aside.join()
    return len(words)


def flood(lines: int, size: int = 20) -> int:
    """Log a lot."""
    for number in range(lines):
        log.info("%d %s", number, "x" * size)
    return lines


async def say_async(word: str) -> str:
    """Log from a coroutine."""
    log.info(word)
    return word


def tell_secret() -> None:
    """Log the key of a model provider, and fail with it."""
    key = os.environ["OPENAI_API_KEY"]
    log.warning("the key is %s", key, extra={"key": key})
    raise RuntimeError(f"refused with {key}")
