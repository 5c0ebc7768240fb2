"""PlainOutput of a person at a terminal, who edits them, finds earlier ones again, and pastes several at once.

The only module that loads prompt_toolkit.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from cantata.chat.output import ChatOutput

keys = KeyBindings()


@keys.add("enter")
def _end(event: KeyPressEvent) -> None:
    """Enter ends a text of several lines too."""
    event.current_buffer.validate_and_handle()


@keys.add("escape", "enter")
def _break(event: KeyPressEvent) -> None:
    """Alt-Enter begins another line of it."""
    event.current_buffer.insert_text("\n")


class TerminalPrompt:
    """A person at the terminal."""

    def __init__(self, beginnings: Collection[str], history: Path | None, output: ChatOutput) -> None:
        """Tab completes what lines begin with; `history` is the file of earlier lines, for its owner alone."""
        self._output = output
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(_private_file(history)) if history else InMemoryHistory(),
            completer=WordCompleter(sorted(beginnings), sentence=True),
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=keys,
            multiline=True,
            prompt_continuation="  ",
        )

    def read(self) -> str | None:
        while True:
            try:
                return self._session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                self._output.print_note("Ctrl-D or /exit ends the chat")


def _private_file(file: Path) -> Path:
    """The file, made if it is not there, that nobody else may read."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(number, 0o600)
    finally:
        os.close(number)
    return file
