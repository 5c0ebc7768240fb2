"""A tool that writes to its process's streams in each way that code does."""

from __future__ import annotations

import os
import sys
import threading
import warnings


def talk(text: str) -> str:
    """Print, warn, write unfinished lines, and raise in a thread."""
    print(f"printed {text}")  # noqa: T201  # what a step prints is what this is about
    print('{"event": "redis_back", "forged": true}')  # noqa: T201  # what a step prints is what this is about
    sys.stderr.write(f"written {text}\n")
    sys.stdout.buffer.write(b"bytes\xff\n")
    print("one\ntwo" + "x" * 9000)  # noqa: T201  # what a step prints is what this is about
    warnings.warn("look out", stacklevel=1)
    thread = threading.Thread(target=_fail, name="of a tool")
    thread.start()
    thread.join()
    print("unfinished", end="")  # noqa: T201  # what a step prints is what this is about
    return f"{text} in {os.getpid()}"


def _fail() -> None:
    raise LookupError("in a thread")
