"""The loop of a chat: takes a line, has it answered, shows the answer as it comes, and goes on whatever went wrong."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from cantata.chat.conversation import ChatBackend
from cantata.chat.line_reader import LineReader, StandardInputReader
from cantata.chat.output import ChatOutput, PlainOutput, TerminalOutput
from cantata.chat.slash_commands import COMMANDS, EXIT_WORDS, command_of, execute
from cantata.chat.turn_view import TurnView
from cantata.client.client import TurnRun
from cantata.errors import CantataError, ConfigError
from cantata.models.events import RunEvent
from cantata.models.wire import RunResult
from cantata.planning.turns.mentions import mention
from cantata.runs.results import answer_text, describe_turn
from cantata.state.redis.connection import RedisFailure
from cantata.state.runs.records import StepRecord

MAX_RECENT_ENTRIES = 6  # entries of a conversation that is gone on with
POLL_INTERVAL_S = 0.2  # how soon Ctrl-C is heeded
BACKLOG_TIMEOUT_S = 0.02  # to read what happened before we came


class ChatLoop:
    """A conversation: lines of a reader, answered by a backend, told to a output. Another thread may interrupt it."""

    def __init__(self, backend: ChatBackend, reader: LineReader, output: ChatOutput, *, is_interactive: bool) -> None:
        """A person is shown what was said before, and may cancel a turn by Ctrl-C."""
        self._backend = backend
        self._reader = reader
        self._output = output
        self._is_interactive = is_interactive
        self._interrupted = threading.Event()
        self._failures = 0

    def run(self) -> bool:
        """Answer lines until there are no more; whether all were answered. A person has seen which were not."""
        backend = self._backend
        if self._is_interactive:
            self._output.print_note(f"session {backend.session} · /help says what may be typed")
            self._try(self._show_recent)
        while (line := self._reader.read()) is not None and line.strip().lower() not in EXIT_WORDS:
            if line.strip():
                self._try(partial(self._handle_line, line))
        if self._is_interactive:
            self._output.print_note(f"go on with: {backend.resume}" if backend.resume else f"session {backend.session} ends here")
        return self._is_interactive or self._failures == 0

    def interrupt(self) -> None:
        """Cancel the turn that is being answered."""
        self._interrupted.set()

    def _try(self, do: Callable[[], None]) -> None:
        """Do something; a fault is told, and the chat goes on."""
        self._interrupted.clear()
        try:
            with _on_interrupt(self.interrupt) if self._is_interactive else nullcontext():
                do()
        except ConfigError as error:
            self._refuse("; ".join(fault.message for fault in error.faults), error.code)
        except (CantataError, RedisFailure) as error:
            self._refuse(str(error), "unavailable")

    def _handle_line(self, line: str) -> None:
        """Do what a line says."""
        command = command_of(line)
        if command is None:
            self._show_turn(self._submit(line))
            return
        before = self._backend.session
        execute(command, self._backend, self._output)
        if self._is_interactive and self._backend.session != before:
            self._show_recent()

    def _refuse(self, why: str, code: str) -> None:
        self._failures += 1
        self._output.refuse(why, code=code)

    def _submit(self, line: str) -> TurnRun:
        asked = mention(line)
        if asked is None:
            return self._backend.submit(line)
        return self._backend.submit(asked.text, agent=asked.agent, send_history=asked.send_history)

    def _show_recent(self) -> None:
        """Show what was said last in the conversation, and what is under way in it."""
        for entry in self._backend.history(MAX_RECENT_ENTRIES):
            self._output.recall(entry)
        for run in self._backend.open_turns():
            self._output.print_note(f"under way: {describe_turn(run.record())}")
            self._show_turn(run)

    def _show_turn(self, run: TurnRun) -> None:
        """Show a turn until it is over."""
        view, steps = TurnView(), _StepCache(run)
        for events in self._events(run):
            for event in events:
                view.apply(event, steps.of(event))
            for item in view.take():
                self._output.tell(item)
        result: RunResult = run.result()
        self._failures += result.status != "succeeded"
        self._output.end(result, was_shown=result.output is not None and view.has_shown(answer_text(result.output)))

    def _events(self, run: TurnRun) -> Iterator[list[RunEvent]]:
        """What happened in a turn, then what happens, to its end. If we are interrupted it is cancelled."""
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
    """Where events end, and whether the turn does."""
    return (events[-1].seq, events[-1].ends_run) if events else (before, False)


class _StepCache:
    """What is known of the steps of a turn, asked for when it may have changed."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self._known: dict[str, StepRecord] = {}

    def of(self, event: RunEvent) -> StepRecord | None:
        """The step that an event is of."""
        if event.step is None:
            return None
        if event.step not in self._known or event.ends_attempt:
            self._known |= self._run.steps([event.step])
        return self._known.get(event.step)


def run(backend: ChatBackend, *, history: Path | None = None, as_json: bool = False) -> bool:
    """ChatLoop until the lines end: with a person if this is a terminal, else a turn a line. Answers whether all such lines were answered.

    `history` is the file where a person's lines are kept; `as_json` tells each result as a line of JSON.
    """
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        return _interactive_loop(backend, history).run()
    return ChatLoop(backend, StandardInputReader(), PlainOutput(as_json=as_json), is_interactive=False).run()


async def run_async(backend: ChatBackend, *, history: Path | None = None) -> bool:
    """The same in a thread, while other coroutines go on. Ctrl-C cancels the turn that is being answered."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await asyncio.to_thread(run, backend)
    chat = await asyncio.to_thread(_interactive_loop, backend, history)
    with _on_interrupt(chat.interrupt):
        return await asyncio.to_thread(chat.run)


def _interactive_loop(backend: ChatBackend, history: Path | None) -> ChatLoop:
    from cantata.chat.prompt import TerminalPrompt  # noqa: PLC0415  # takes 0.2 s to load

    screen = TerminalOutput()
    prompt = TerminalPrompt([*(f"/{name}" for name in COMMANDS), *(f"@{name}: " for name in backend.agents)], history, screen)
    return ChatLoop(backend, prompt, screen, is_interactive=True)


@contextmanager
def _on_interrupt(do: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C does this instead, where that can be said: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
