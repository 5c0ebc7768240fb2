"""Lines that show what a command waits for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cantata.operation.embedded import Stack

CLEAR = "\r\x1b[2K"
DELAY_S = 0.2  # what takes less needs no line
PERIOD_S = 1.0


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show what the block does, and for how long, until it ends; nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(text, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def await_own(stack: Stack) -> None:
    """Say that a stack of this command's own is used, and wait until it is ready."""
    path = stack.home.path
    purpose = (
        f"starting one in {path} for this command" if stack.has_workers else f"using what {path} keeps, without workers"
    )
    click.echo(f"neither REDIS_URL nor CANTATA_APP nor a stack of `submit up` here: {purpose}", err=True)
    with show_progress(f"starting {'a stack' if stack.has_workers else 'Redis'} in {path}"):
        stack.wait_ready()


def _show(text: str, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(DELAY_S):
        return
    while not ended.is_set():
        seconds = round(time.monotonic() - began)
        _write(f"{CLEAR}{text} …{f' {seconds} s' if seconds else ''}")
        ended.wait(PERIOD_S)
    _write(CLEAR)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
