"""What a chat writes on: a terminal that is written to as answers come, or plain lines for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import click

from cantata import text_format
from cantata.chat.turn_view import ChatItem
from cantata.models.values import ErrorInfo
from cantata.models.wire import HistoryEntry, RunResult
from cantata.runs.results import answer_text

STYLES: Mapping[str, dict[str, Any]] = {
    "speaker": {"fg": "cyan", "bold": True},
    "void": {"fg": "yellow"},
    "note": {"dim": True},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red"},
}
MAX_LINE = 300


class ChatOutput(Protocol):
    """Where a chat writes."""

    def tell(self, item: ChatItem) -> None:
        """Something of a turn, while it goes on."""

    def end(self, result: RunResult, *, was_shown: bool) -> None:
        """How a turn ended; `was_shown` says that its answer was told while it came."""

    def say(self, text: str) -> None:
        """What a command answers."""

    def print_note(self, text: str) -> None:
        """Something aside."""

    def refuse(self, text: str, *, code: str) -> None:
        """Why a line has no answer."""

    def recall(self, entry: HistoryEntry) -> None:
        """Something that was said before."""


class TerminalOutput:
    """A terminal: only ever written on, so that what is said stays where it is and can be scrolled back to."""

    def __init__(self) -> None:
        self._is_in_line = False
        self._speaker = ""
        self._has_colours = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    def tell(self, item: ChatItem) -> None:
        match item.type:
            case "speaker":
                self._speaker = item.text
                self._name(item.text)
            case "piece":
                self._write(item.text)
            case "void":
                self._line(f"⟲ taken back: {item.text}", "void")
            case what:
                self._line(text_format.line(item.text, MAX_LINE), what)

    def end(self, result: RunResult, *, was_shown: bool) -> None:
        if result.output is not None and not was_shown:
            self._name(result.agents[-1] if result.agents else "answer")
            self._write(text_format.clean(answer_text(result.output)))
        if result.status == "cancelled":
            self._line("cancelled", "void")
        elif result.error:
            self._line(text_format.line(result.error.message, 2000), "error")
        used = text_format.usage(result.usage)
        self._line(" · ".join(part for part in (text_format.duration(result.duration_ms), used) if part), "note")

    def say(self, text: str) -> None:
        self._line(text_format.clean(text))

    def print_note(self, text: str) -> None:
        self._line(text_format.clean(text), "note")

    def refuse(self, text: str, *, code: str) -> None:
        self._line(text_format.line(text, 2000), "error")

    def recall(self, entry: HistoryEntry) -> None:
        self._line(f"{text_format.speaker(entry.role, entry.agent)}: {text_format.clean(entry.content)}", "note")

    def _name(self, speaker: str) -> None:
        self._end_line()
        self._write(self._styled(f"{text_format.line(speaker)}: ", "speaker"))

    def _line(self, text: str, look: str = "") -> None:
        self._end_line()
        self._write(f"{self._styled(text, look)}\n")

    def _end_line(self) -> None:
        if self._is_in_line:
            self._write("\n")

    def _styled(self, text: str, look: str) -> str:
        return click.style(text, **STYLES[look]) if look and self._has_colours else text

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._is_in_line = not text.endswith("\n")


class PlainOutput:
    """Plain lines: answers on standard output, all else on standard error; or a JSON object for each turn."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json

    def tell(self, item: ChatItem) -> None:
        if item.type == "warning" and not self._as_json:
            click.echo(f"warning: {text_format.line(item.text, MAX_LINE)}", err=True)

    def end(self, result: RunResult, *, was_shown: bool) -> None:
        if self._as_json:
            click.echo(result.model_dump_json())
            return
        if result.output is not None:
            click.echo(text_format.clean(answer_text(result.output)))
        if result.error:
            click.echo(f"error: {text_format.line(result.error.message, 2000)} ({result.error.code})", err=True)

    def say(self, text: str) -> None:
        click.echo(text_format.clean(text), err=self._as_json)

    def print_note(self, text: str) -> None:
        click.echo(text_format.clean(text), err=True)

    def refuse(self, text: str, *, code: str) -> None:
        if self._as_json:
            click.echo(RunResult(run_id="", status="failed", error=ErrorInfo(code=code, message=text)).model_dump_json())
        else:
            click.echo(f"error: {text_format.line(text, 2000)}", err=True)

    def recall(self, entry: HistoryEntry) -> None:
        self.say(f"{text_format.speaker(entry.role, entry.agent)}: {text_format.clean(entry.content)}")
