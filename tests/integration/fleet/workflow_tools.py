"""Functions of the workflows that these tests run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def get_allowed_paths() -> dict[str, object]:
    """Which folders may be read and written."""
    return {"local_filesystem": {"read_write_paths": ["~/workspace/"]}}


def write_file(path: str, content: str) -> str:
    """Write a file."""
    return f"wrote {len(content)} characters to {path}"


def count(text: str) -> dict[str, object]:
    return {"words": len(text.split()), "text": text}


def slow(journal: str, mark: str, seconds: float = 0.1) -> str:
    """Take some time, and say so before and after."""
    for word in ("start", "finish"):
        with Path(journal).open("ab", buffering=0) as file:
            file.write(
                (json.dumps({"what": word, "name": mark, "pid": os.getpid(), "at": time.time()}) + "\n").encode()
            )
        if word == "start":
            time.sleep(float(seconds))
    return mark


def nothing() -> None:
    """Return nothing."""


def broken() -> None:
    """Fail."""
    raise RuntimeError("out of paper")
