"""A terminal with `submit chat` on it, as a person has it: keys go in, and what is on the screen is read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.warm import own_terminal

TOP = Path(__file__).parents[3]
PATIENCE_S = 45.0
PROMPT = ">\b"  # as it is painted first; text that is typed comes behind it
CTRL_C, CTRL_D = "\x03", "\x04"

CONFIG = """\
version: 1
tools:
  price: {function: "chat_tools:price"}
agents:
  poet: {description: Writes., model: openai/gpt-4o-mini, retries: 1, instructions: ["{input}"]}
  seller: {description: Sells., model: openai/gpt-4o-mini, tools: [price], retries: 0, instructions: ["{input}"]}
teams:
  led: {mode: router, agents: [poet, seller], router: {models: [openai/gpt-4o]}}
  desk: {mode: router, agents: [poet, seller], rules: [{match: rose, agent: seller}], default_agent: poet}
  both: {mode: broadcast, agents: [poet, seller]}
defaults: {agent: poet}
"""
TOOLS = '''
def price(flower: str) -> float:
    """What a flower costs."""
    return 3.5
'''

_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\r")


def settled(folder: Path) -> Path:
    """The folder, with a configuration and the tools that it names."""
    (folder / "desk.yaml").write_text(CONFIG)
    (folder / "chat_tools.py").write_text(TOOLS)
    return folder


def environment(folder: Path, url: str | None) -> dict[str, str]:
    """What a command sees that talks to the stack at `url`, or to its own."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REDIS_URL", "NO_COLOR") and not name.startswith("CANTATA_")
    }
    more = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(folder / "state")}
    more["PYTHONPATH"] = os.pathsep.join((str(TOP), str(folder)))
    return {**ours, **more, "CANTATA_CONFIG": "desk.yaml", **({"REDIS_URL": url} if url else {})}


def submit(folder: Path, url: str | None, *words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    """A command without a terminal, with lines on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "cantata.surfaces.cli", *words],
        cwd=folder,
        env=environment(folder, url),
        input=lines,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        check=False,
    )


class Terminal:
    """A terminal whose program is `submit chat`, until the block ends."""

    def __init__(self, folder: Path, url: str | None, *words: str, program: str = "cantata.surfaces.cli") -> None:
        """`program` is a module that begins a chat, when it is started with `chat` and these words."""
        self._screen, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, "chat", *words],
            cwd=folder,
            env=environment(folder, url),
            stdin=side,
            stdout=side,
            stderr=side,
            preexec_fn=own_terminal,
        )
        os.close(side)
        self._bytes = b""
        self._read = 0

    @property
    def shown(self) -> str:
        """All that was written on it, without colours and movements."""
        return _SEQUENCES.sub("", self._bytes.decode(errors="replace"))

    @property
    def raw(self) -> str:
        """All that was written on it."""
        return self._bytes.decode(errors="replace")

    def press(self, text: str, end: str = "\r") -> None:
        """Press keys, and Enter."""
        os.write(self._screen, f"{text}{end}".encode())

    def until(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until a text appears behind what was waited for before; what came up to and with it."""
        give_up = time.monotonic() + timeout_s
        while (found := self.shown.find(text, self._read)) < 0:
            readable, _, _ = select.select([self._screen], [], [], max(0.0, give_up - time.monotonic()))
            if not readable or not self._take():
                pytest.fail(f"{text!r} did not come; behind what was read there is: {self.shown[self._read :]!r}")
        start, self._read = self._read, found + len(text)
        return self.shown[start : self._read]

    def ask(self, text: str) -> str:
        """Type a line and wait for the next prompt; what came in between."""
        self.press(text)
        self.until(text)
        return self.until(PROMPT).removesuffix(PROMPT).partition("\n")[2]

    def end(self, keys: str = CTRL_D) -> str:
        """End the chat; what it says last."""
        start = len(self.shown)
        self.press(keys, "" if keys == CTRL_D else "\r")
        while self._take():
            pass
        assert self.process.wait(PATIENCE_S) == 0
        return self.shown[start:]

    def kill(self) -> None:
        """End the program at once."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._screen)

    def _take(self) -> bool:
        try:
            chunk = os.read(self._screen, 65_536)
        except OSError:  # Linux says so when the last process has closed the other side
            return False
        self._bytes += chunk
        return bool(chunk)
