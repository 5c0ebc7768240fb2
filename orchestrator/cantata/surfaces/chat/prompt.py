"""The prompt of a chat on a terminal: line editing, history, pasted lines.

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

from cantata.surfaces.chat.output import ChatOutput

keys = KeyBindings()


@keys.add("enter")
def _submit(event: KeyPressEvent) -> None:
    """Submit the text on Enter, even if it has several lines."""
    event.current_buffer.validate_and_handle()


@keys.add("escape", "enter")
def _insert_line_break(event: KeyPressEvent) -> None:
    """Insert a line break on Alt-Enter."""
    event.current_buffer.insert_text("\n")


class TerminalPrompt:
    """Reads the lines that a user types."""

    def __init__(self, completions: Collection[str], history: Path | None, output: ChatOutput) -> None:
        """Tab completes the beginnings of lines in `completions`; `history` is the file of lines typed earlier, private to its owner."""
        self._output = output
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(_private_file(history)) if history else InMemoryHistory(),
            completer=WordCompleter(sorted(completions), sentence=True),
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=keys,
            multiline=True,
            prompt_continuation="  ",
        )

    def read(self) -> str | None:
        """Return the next line; None at the end."""
        while True:
            try:
                return self._session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                self._output.print_note("Ctrl-D or /exit ends the chat")


def _private_file(file: Path) -> Path:
    """Create a file if it is missing, let only its owner read it, and return it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return file
