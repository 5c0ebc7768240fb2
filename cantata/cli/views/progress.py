"""A line on a terminal that shows what a command waits for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CLEAR = "\r\x1b[2K"
PERIOD_S = 1.0


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show what the block does, and for how long, until it ends; nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        while True:
            seconds = round(time.monotonic() - began)
            sys.stderr.write(f"{CLEAR}{text} …{f' {seconds} s' if seconds else ''}")
            sys.stderr.flush()
            if ended.wait(PERIOD_S):
                return

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
