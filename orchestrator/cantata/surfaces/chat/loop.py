"""ChatLoop: reads a line, submits it, shows the reply as it comes; an error does not end the chat."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from cantata.client.failures import RedisFailure
from cantata.client.records import StepRecord, answer_text, describe_request
from cantata.client.runs import TurnRun
from cantata.errors import CantataError, ConfigError
from cantata.flows.events import RunEvent
from cantata.flows.turns.mentions import mention_of
from cantata.flows.wire import RunResult
from cantata.surfaces.chat.backend import ChatBackend
from cantata.surfaces.chat.output import ChatOutput, PlainOutput, TerminalOutput
from cantata.surfaces.chat.slash_commands import COMMANDS, EXIT_WORDS, execute, parse_command
from cantata.surfaces.chat.turn_view import TurnView

MAX_RECENT_ENTRIES = 6  # shown when a conversation is continued
POLL_INTERVAL_S = 0.2  # how soon Ctrl-C takes effect
BACKLOG_TIMEOUT_S = 0.02  # to read the events before ours


class ChatLoop:
    """Submits lines to a backend and shows the replies on an output. Another thread may interrupt it."""

    def __init__(
        self, backend: ChatBackend, read: Callable[[], str | None], output: ChatOutput, *, is_interactive: bool
    ) -> None:
        """`read` returns the next line, None at the end.

        An interactive loop shows recent entries of the conversation, and Ctrl-C cancels a turn.
        """
        self._backend = backend
        self._read = read
        self._output = output
        self._is_interactive = is_interactive
        self._interrupted = threading.Event()
        self._failures = 0

    def run(self) -> bool:
        """Answer lines until there are no more. Return whether all were answered; true if interactive, where the user saw each error."""
        backend = self._backend
        if self._is_interactive:
            self._output.print_note(f"session {backend.session} · /help lists the commands")
            self._try(self._show_recent)
        while (line := self._read()) is not None and line.strip().lower() not in EXIT_WORDS:
            if line.strip():
                self._try(partial(self._handle_line, line))
        if self._is_interactive:
            self._output.print_note(
                f"continue with: {backend.resume}" if backend.resume else f"session {backend.session} ends here"
            )
        return self._is_interactive or self._failures == 0

    def interrupt(self) -> None:
        """Cancel the turn under way."""
        self._interrupted.set()

    def _try(self, action: Callable[[], None]) -> None:
        """Perform an action; print its error, if any, and go on."""
        self._interrupted.clear()
        try:
            with _on_interrupt(self.interrupt) if self._is_interactive else nullcontext():
                action()
        except ConfigError as error:
            self._print_error("; ".join(fault.message for fault in error.faults), error.code)
        except (CantataError, RedisFailure) as error:
            self._print_error(str(error), "unavailable")

    def _handle_line(self, line: str) -> None:
        """Execute a slash command, or submit a turn."""
        command = parse_command(line)
        if command is None:
            self._show_turn(self._submit(line))
            return
        before = self._backend.session
        execute(command, self._backend, self._output)
        if self._is_interactive and self._backend.session != before:
            self._show_recent()

    def _print_error(self, message: str, code: str) -> None:
        self._failures += 1
        self._output.print_error(message, code=code)

    def _submit(self, line: str) -> TurnRun:
        addressed = mention_of(line)
        if addressed is None:
            return self._backend.submit(line)
        return self._backend.submit(addressed.text, agent=addressed.agent, send_history=addressed.send_history)

    def _show_recent(self) -> None:
        """Show the newest entries of the conversation and its open turns."""
        for entry in self._backend.history(MAX_RECENT_ENTRIES):
            self._output.print_entry(entry)
        for run in self._backend.open_turns():
            self._output.print_note(f"under way: {describe_request(run.record())}")
            self._show_turn(run)

    def _show_turn(self, run: TurnRun) -> None:
        """Show a turn until it is over."""
        view, steps = TurnView(), _StepCache(run)
        for events in self._events(run):
            for event in events:
                view.apply(event, steps.step_of(event))
            for item in view.take():
                self._output.print_item(item)
        result: RunResult = run.result()
        self._failures += result.status != "succeeded"
        self._output.print_result(
            result, was_shown=result.output is not None and view.has_shown(answer_text(result.output))
        )

    def _events(self, run: TurnRun) -> Iterator[list[RunEvent]]:
        """Yield the past events of a turn at once, then each new one, until it is over. An interrupt cancels the turn."""
        events = list(run.log(timeout_s=BACKLOG_TIMEOUT_S))
        yield events
        after, is_over = _offset(events, 0)
        while not is_over:
            for event in run.log(after, timeout_s=POLL_INTERVAL_S):
                yield [event]
                after, is_over = _offset([event], after)
            if self._interrupted.is_set() and not is_over:
                self._interrupted.clear()
                run.cancel()


def _offset(events: list[RunEvent], before: int) -> tuple[int, bool]:
    """Return the offset after some events, and whether they end the turn."""
    return (events[-1].seq, events[-1].ends_run) if events else (before, False)


class _StepCache:
    """The steps of a turn, read again when they may have changed."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self._known: dict[str, StepRecord] = {}

    def step_of(self, event: RunEvent) -> StepRecord | None:
        """Return the step of an event, if it has one."""
        if event.step is None:
            return None
        if event.step not in self._known or event.ends_attempt:
            self._known |= self._run.steps([event.step])
        return self._known.get(event.step)


def run(backend: ChatBackend, *, history: Path | None = None, as_json: bool = False) -> bool:
    """Chat until the lines end: interactively on a terminal, otherwise with one turn a line of standard input.

    Args:
        backend: Answers the lines.
        history: The file of lines typed earlier.
        as_json: Print each result as a line of JSON.

    Returns:
        Whether all lines were answered; always true if interactive.
    """
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        return _interactive_loop(backend, history).run()
    return ChatLoop(backend, _read_line, PlainOutput(as_json=as_json), is_interactive=False).run()


async def run_async(backend: ChatBackend, *, history: Path | None = None) -> bool:
    """Chat like `run`, in a thread, while other coroutines go on. Ctrl-C cancels the turn under way."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await asyncio.to_thread(run, backend)
    loop = await asyncio.to_thread(_interactive_loop, backend, history)
    with _on_interrupt(loop.interrupt):
        return await asyncio.to_thread(loop.run)


def _read_line() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _interactive_loop(backend: ChatBackend, history: Path | None) -> ChatLoop:
    from cantata.surfaces.chat.prompt import TerminalPrompt  # noqa: PLC0415  # takes 0.2 s to load

    output = TerminalOutput()
    prompt = TerminalPrompt(
        [*(f"/{name}" for name in COMMANDS), *(f"@{name}: " for name in backend.agents)], history, output
    )
    return ChatLoop(backend, prompt.read, output, is_interactive=True)


@contextmanager
def _on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C perform an action instead; in the main thread only, where Python can set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
