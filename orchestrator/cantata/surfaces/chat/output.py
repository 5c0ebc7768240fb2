"""Outputs of a chat: a terminal, written as replies come, or plain lines for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import click

from cantata.client.records import answer_text
from cantata.flows.wire import HistoryEntry, RunResult
from cantata.surfaces.chat.turn_view import ChatItem
from cantata.text import text_format
from cantata.values import ErrorInfo

STYLES: Mapping[str, dict[str, Any]] = {
    "speaker": {"fg": "cyan", "bold": True},
    "void": {"fg": "yellow"},
    "note": {"dim": True},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red"},
}
MAX_LINE = 300  # characters of a note or warning
MAX_ERROR = 2000


class ChatOutput(Protocol):
    """Writes what a chat shows."""

    def print_item(self, item: ChatItem) -> None:
        """Show an item of a turn under way."""

    def print_result(self, result: RunResult, *, was_shown: bool) -> None:
        """Show how a turn ended; `was_shown` says that its answer was shown as it came."""

    def print_text(self, text: str) -> None:
        """Show the answer of a slash command."""

    def print_note(self, text: str) -> None:
        """Show a note about the chat."""

    def print_error(self, message: str, *, code: str) -> None:
        """Show why a line has no answer."""

    def print_entry(self, entry: HistoryEntry) -> None:
        """Show an earlier entry of the conversation."""


class TerminalOutput:
    """A terminal, only ever appended to, so that the scrollback has the whole chat."""

    def __init__(self) -> None:
        self._is_in_line = False
        self._speaker = ""
        self._has_colours = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def print_item(self, item: ChatItem) -> None:
        match item.type:
            case "speaker":
                self._speaker = item.text
                self._name(item.text)
            case "piece":
                self._write(item.text)
            case "void":
                self._line(f"⟲ discarded: {item.text}", "void")
            case style:
                self._line(text_format.line(item.text, MAX_LINE), style)

    def print_result(self, result: RunResult, *, was_shown: bool) -> None:
        if result.output is not None and not was_shown:
            self._name(result.agents[-1] if result.agents else "answer")
            self._write(text_format.clean(answer_text(result.output)))
        if result.status == "cancelled":
            self._line("cancelled", "void")
        elif result.error:
            self._line(text_format.line(result.error.message, MAX_ERROR), "error")
        used = text_format.usage(result.usage)
        self._line(" · ".join(part for part in (text_format.duration(result.duration_ms), used) if part), "note")

    def print_text(self, text: str) -> None:
        self._line(text_format.clean(text))

    def print_note(self, text: str) -> None:
        self._line(text_format.clean(text), "note")

    def print_error(self, message: str, *, code: str) -> None:
        self._line(text_format.line(message, MAX_ERROR), "error")

    def print_entry(self, entry: HistoryEntry) -> None:
        self._line(f"{text_format.speaker(entry.role, entry.agent)}: {text_format.clean(entry.content)}", "note")

    def _name(self, speaker: str) -> None:
        self._end_line()
        self._write(self._styled(f"{text_format.line(speaker)}: ", "speaker"))

    def _line(self, text: str, style: str = "") -> None:
        self._end_line()
        self._write(f"{self._styled(text, style)}\n")

    def _end_line(self) -> None:
        if self._is_in_line:
            self._write("\n")

    def _styled(self, text: str, style: str) -> str:
        return click.style(text, **STYLES[style]) if style and self._has_colours else text

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._is_in_line = not text.endswith("\n")


class PlainOutput:
    """Plain lines: answers on standard output, all else on standard error; with `as_json` a JSON object for each turn."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json

    def print_item(self, item: ChatItem) -> None:
        if item.type == "warning" and not self._as_json:
            click.echo(f"warning: {text_format.line(item.text, MAX_LINE)}", err=True)

    def print_result(self, result: RunResult, *, was_shown: bool) -> None:
        if self._as_json:
            click.echo(result.model_dump_json())
            return
        if result.output is not None:
            click.echo(text_format.clean(answer_text(result.output)))
        if result.error:
            click.echo(f"error: {text_format.line(result.error.message, MAX_ERROR)} ({result.error.code})", err=True)

    def print_text(self, text: str) -> None:
        click.echo(text_format.clean(text), err=self._as_json)

    def print_note(self, text: str) -> None:
        click.echo(text_format.clean(text), err=True)

    def print_error(self, message: str, *, code: str) -> None:
        if self._as_json:
            click.echo(
                RunResult(run_id="", status="failed", error=ErrorInfo(code=code, message=message)).model_dump_json()
            )
        else:
            click.echo(f"error: {text_format.line(message, MAX_ERROR)}", err=True)

    def print_entry(self, entry: HistoryEntry) -> None:
        self.print_text(f"{text_format.speaker(entry.role, entry.agent)}: {text_format.clean(entry.content)}")
