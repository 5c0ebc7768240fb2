"""Executes a workflow: replays it from its history, and goes on from where it waits with the outcomes that came since."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import basename
from pathlib import Path
from typing import Any, cast

from cantata import bounds
from cantata.errors import MISMATCH, CodeMismatchError, ConfigError, StepError
from cantata.flows.definitions import Definitions
from cantata.flows.workflows.conversion import jsonable
from cantata.flows.workflows.event_loop import NumberedFuture, WorkflowLoop
from cantata.flows.workflows.history import STOPPED, Activation, CommandOutcome, Recorded, WorkflowCommand, digest_of
from cantata.operation import exits
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue

WARNED_COMMANDS, MAX_COMMANDS = 2000, 10_000  # of one workflow
_UNSAFE = re.compile(r"[^\w./-]")  # in the id of a step
_OUR_MODULES = ("cantata.flows.workflows.", "asyncio.")
_OURS = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))


class ContinueAs(BaseException):
    """Ends the code of a workflow, which begins again with other arguments."""

    def __init__(self, arguments: dict[str, JsonValue]) -> None:
        super().__init__("the workflow continues with other arguments")
        self.arguments = arguments


class NonDeterminismError(Exception):
    """The code asks for something else than what its history has."""

    def mismatch(self, name: str, reference: str) -> CodeMismatchError:
        """Return the error for people."""
        message = f"the code of workflow {name!r} ({reference}) {MISMATCH}: {self}. Deploy the code that the run"
        return CodeMismatchError(f"{message} began with, or keep both ways with wf.patched")


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of one activation."""

    activation: Activation
    commands: Sequence[WorkflowCommand] = ()
    """The new commands, in order."""
    awaited: Sequence[int] = ()
    """Indexes of the commands for which it waits."""
    waits_for_all: bool = False
    """True if it goes on when all of these are over, false if when one is."""
    given_up: Sequence[int] = ()
    """Indexes of open commands whose futures the code cancelled."""
    is_over: bool = False
    output: JsonValue = None
    continues_with: dict[str, JsonValue] | None = None
    """The input with which the workflow begins again, with a history of its own."""


class CommandFuture(NumberedFuture):
    """The outcome of a command, to be awaited."""

    def __init__(self, replay: Replay, index: int) -> None:
        super().__init__(replay.loop)
        self.index = index


class AllFuture(NumberedFuture):
    """Done when all of some commands are over."""

    def __init__(self, replay: Replay, children: Sequence[asyncio.Future[Any]]) -> None:
        super().__init__(replay.loop)
        self.children = children
        self._left = len(children)
        for child in children:
            child.add_done_callback(self._count)
        if not children:
            self.set_result(None)

    def cancel(self, msg: object = None) -> bool:
        """Cancel what is awaited too, as `asyncio.gather` does."""
        if self.done():
            return False
        for child in self.children:
            child.cancel(msg)
        return super().cancel(msg)

    def _count(self, _: object) -> None:
        self._left -= 1
        if not self._left and not self.done():
            self.set_result(None)


class Replay:
    """One execution of a workflow's code from its beginning, which can go on after each activation."""

    def __init__(self, run_id: str, definitions: Definitions, history: Sequence[Activation], name: str = "") -> None:
        """Create a replay of the workflow whose own step is `name`."""
        self.run_id = history[0].run_id if history else run_id
        self.definitions = definitions
        self.loop = WorkflowLoop(self.sleep)  # type: ignore[abstract]  # what it lacks raises NotImplementedError
        self.history = [*history]
        """The activations so far."""
        self.commands = [command for activation in history for command in activation.commands]
        """The commands of the history."""
        self.received = {index for activation in history for index in activation.received}
        """Indexes of the commands whose outcomes the code has received in its history."""
        self.queries: dict[str, Callable[..., Any]] = {}
        """The functions that the code registered for queries, by name."""
        self._name = name
        self._task: asyncio.Task[Any] | None = None
        self._given: list[Recorded] = []
        self._new: list[WorkflowCommand] = []
        self._open: dict[int, tuple[CommandFuture, Callable[[CommandOutcome], Any]]] = {}
        self._patches: dict[str, bool] = {}
        self._new_patches: list[str] = []
        self._number = 0
        self._wanted = 0
        self._is_over = False
        self._is_asked = False
        self._fault: NonDeterminismError | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether the code waits behind its history, so that it goes on without a replay."""
        return self._task is not None and not self._is_over

    @cached_property
    def random(self) -> random.Random:
        """The source of chance, the same in every replay."""
        return random.Random(f"{self.run_id}/{self._name}")

    # --- what the workflow calls ------------------------------------------------------------------------------------

    def command(
        self,
        kind: str,
        target: str,
        arguments: Mapping[str, JsonValue],
        options: Mapping[str, JsonValue],
        convert: Callable[[CommandOutcome], Any],
        label: str,
    ) -> asyncio.Future[Any]:
        """Give a command; return the future of what `convert` makes of its outcome. `label` ends the id of its step."""
        if self._is_asked:
            raise StepError(
                f"a query gives no commands, it only reads, and this one gave {kind} {target!r}", code="query_failed"
            )
        if self._is_over or self._fault:  # what the code still does has no effect
            return self.loop.create_future()
        line = _line()
        index = len(self._given)
        if index >= MAX_COMMANDS:
            message = f"a workflow can have {MAX_COMMANDS:,} commands; begin a new history with wf.continue_as"
            raise StepError(message, code="too_many_commands")
        try:
            digest = digest_of({**arguments, **{f"@{name}": value for name, value in options.items()}})
        except (TypeError, ValueError, RecursionError) as error:
            raise StepError(
                f"the arguments of {kind} {target!r} are not JSON: {error} (at {line})", code="not_json"
            ) from None
        asked = Recorded(step=f"{index}.{_UNSAFE.sub('_', label)}", kind=kind, target=target, digest=digest, line=line)
        if index < len(self.commands):
            was = self.commands[index]
            if not asked.same_as(was):
                _check_bounds(
                    kind, target, arguments, options, line
                )  # raised then too: the code caught it, and gave another command
                what = "" if asked.target != was.target or asked.kind != was.kind else " with other arguments"
                self._fault = NonDeterminismError(f"command {index} was {was}, and now is {asked}{what}")
                return self.loop.create_future()
        else:
            _check_bounds(kind, target, arguments, options, line)
            self._new.append(WorkflowCommand(asked, arguments, options))
        self._given.append(asked)
        future = CommandFuture(self, index)
        self._open[index] = future, convert
        return future

    def patched(self, name: str) -> bool:
        """Return whether to take the new code of a patch: not where a run under way went past it with the old code."""
        if name not in self._patches:
            is_recorded = any(name in activation.patches for activation in self.history)
            self._patches[name] = is_recorded or self._number >= len(self.history)
            if self._patches[name] and not is_recorded:
                self._new_patches.append(name)
        return self._patches[name]

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        """Give a command that is over after some seconds. Then the clock of the loop has gone on by as many, at least."""
        ends_at = self.loop.now + seconds

        def convert(outcome: CommandOutcome) -> None:
            outcome.result()
            if outcome.timed_out:  # older versions let a signal end it
                self.loop.now = max(self.loop.now, ends_at)

        return self.command("sleep", "", {"seconds": round(seconds, 3)}, {}, convert, "sleep")

    # --- execution --------------------------------------------------------------------------------------------------

    def run(
        self,
        main: Callable[[], Any],
        *,
        at: float,
        outcomes: Mapping[int, CommandOutcome],
        received: Sequence[int],
        given: Mapping[str, JsonValue],
        cancelled: bool = False,
    ) -> Advance:
        """Run the coroutine that `main` returns, through its history and one activation more; if it waits there, only that one.

        The new activation begins at `at`, and receives the outcomes of the commands `received`. If it is `cancelled`, it raises
        CancelledError in each task, where that awaits something. `outcomes` are those, and in a replay those of the history too.

        Call `discard` when no activation is to follow. Raises NonDeterminismError if the code does not follow its history, and StepError
        if it failed.
        """
        task = self._task or self.restore(main, outcomes)
        self._number = len(self.history)
        self._activate(at, received, outcomes, cancelled=cancelled)
        own: dict[str, Any] = {} if self.history else {"input": dict(given), "run_id": self.run_id}
        commands = tuple(command.recorded for command in self._new)
        newest = Activation(
            at=at,
            received=tuple(received),
            cancelled=cancelled,
            commands=commands,
            patches=tuple(self._new_patches),
            **own,
        )
        advance = self._advance(task, newest)
        self.history.append(advance.activation)
        self.commands += advance.activation.commands
        self.received.update(received)
        self._new, self._new_patches = [], []
        return advance

    def discard(self) -> None:
        """Drop the code where it waits."""
        self._is_over = True
        self.loop.discard()

    def heeds_order(self, indexes: Sequence[int]) -> bool:
        """Return whether code that waits behind its history can tell in which order the outcomes of these commands come."""
        heeded = [index for index in indexes if index in self._open and self._open[index][0]._callbacks]
        return len(heeded) > 1 and not (self._task and self._awaited(self._task))

    def restore(
        self, main: Callable[[], Any], outcomes: Mapping[int, CommandOutcome], *, ended: bool = False
    ) -> asyncio.Task[Any]:
        """Run the coroutine that `main` returns through its history, with which it `ended` or waits. Raises as `run`."""
        self._task = task = self.loop.create_task(main())
        for number, activation in enumerate(self.history):
            self._number = number
            self._activate(activation.at, activation.received, outcomes, cancelled=activation.cancelled)
            self._check(activation, is_over=task.done(), was_over=ended and number + 1 == len(self.history))
        return task

    def ask(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """Return the answer of a query of the code, where that waits or ended.

        Raises ConfigError for an unknown query or wrong arguments, StepError if it fails.
        """
        if name not in self.queries:
            raise ConfigError(
                f"the workflow has no query {name!r} here{did_you_mean(name, self.queries)}", code="unknown_query"
            )
        function, self._is_asked = self.queries[name], True
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"query {name}{inspect.signature(function)}: {error}", code="bad_arguments") from None
        try:
            with exits.contained(f"query {name!r}", code="query_failed"):
                answer = function(**arguments)
        except StepError:
            raise
        except Exception as error:
            message = f"query {name!r} raised {type(error).__name__}: {error} (at {_raised_at(error)})"
            raise StepError(message, code="query_failed") from error
        return jsonable(answer, f"the answer of query {name!r}")

    def _activate(
        self, at: float, received: Sequence[int], outcomes: Mapping[int, CommandOutcome], *, cancelled: bool
    ) -> None:
        self.loop.now = at
        stopped = {index for index in received if cancelled and _is_stopped(outcomes[index])}
        self._receive([index for index in received if index not in stopped], outcomes)
        if cancelled:
            for task in self.loop.tasks:
                task.cancel()
        self._receive(sorted(stopped), outcomes)  # to who awaits them later
        try:
            self.loop.run_ready()
        except (KeyboardInterrupt, SystemExit) as error:  # asyncio lets them end its loop
            self._is_over = True
            raise exits.failure_of(f"the workflow (at {_raised_at(error)})", error, code="workflow_error") from error
        if self._fault:
            raise self._fault

    def _receive(self, indexes: Sequence[int], outcomes: Mapping[int, CommandOutcome]) -> None:
        for index in indexes:
            future, convert = self._open.pop(index)
            if not future.done():  # it may have been cancelled
                try:
                    future.set_result(convert(outcomes[index]))
                except BaseException as error:  # the failure of a step, or an output of another type than expected
                    if exits.is_of_signal(error):
                        raise
                    future.set_exception(error)
                    future.exception()  # it may never be awaited

    def _check(self, activation: Activation, *, is_over: bool, was_over: bool) -> None:
        self._wanted += len(activation.commands)
        wanted = self._wanted
        if len(self._given) < wanted:
            what = "ended" if is_over else "waits"
            raise NonDeterminismError(
                f"command {len(self._given)} was {self.commands[len(self._given)]}, and now the code {what} without it"
            )
        if len(self._given) > wanted:
            last = f"command {wanted - 1}, {self.commands[wanted - 1]}" if wanted else "its start"
            raise NonDeterminismError(f"the code waited after {last}, and now gives {self._given[wanted]} before that")
        if was_over and not is_over:
            raise NonDeterminismError(f"the code ended after command {wanted - 1}, and now waits there")
        if is_over and not was_over:
            raise NonDeterminismError(f"the code went on after command {wanted - 1}, and now ends there")

    def _advance(self, task: asyncio.Task[Any], activation: Activation) -> Advance:
        if task.cancelled() and any(each.cancelled for each in (*self.history, activation)):
            raise StepError("the workflow was cancelled", code="cancelled")
        if task.done():
            error = (
                asyncio.CancelledError("the workflow cancelled itself")
                if task.cancelled()
                else _first_of(task.exception())
            )
            if isinstance(error, ContinueAs):
                waits = [
                    index for index in self._open if index < len(self.commands) and self.commands[index].kind == "wait"
                ]
                return Advance(activation, given_up=waits, is_over=True, continues_with=error.arguments)
            if error is not None:
                raise _failure_of(error) from error
            return Advance(activation, is_over=True, output=jsonable(task.result(), "the result of the workflow"))
        pending = [index for index, (future, _) in self._open.items() if not future.done()]
        awaited = self._awaited(task)
        if not awaited and not pending:
            raise StepError(
                f"the workflow waits for something that no step will give (at {_waiting_line(task)})",
                code="workflow_stuck",
            )
        given_up = [index for index, (future, _) in self._open.items() if future.cancelled()]
        return Advance(activation, tuple(self._new), awaited or pending, waits_for_all=bool(awaited), given_up=given_up)

    def _awaited(self, main: asyncio.Task[Any]) -> list[int]:
        """Return the commands that must all be over before any code can run; empty if one of those pending may be enough."""
        if self.loop.timers or any(not task.done() for task in self.loop.tasks if task is not main):
            return []
        waited = main._fut_waiter  # type: ignore[attr-defined]  # no other way shows for what a task waits
        futures = waited.children if isinstance(waited, AllFuture) else [waited]
        commands = [future for future in futures if isinstance(future, CommandFuture)]
        if any(len(future._callbacks or ()) > 1 for future in commands):
            return []
        others = (future for future, _ in self._open.values() if not future.done())
        if any(future._callbacks for future in {*others}.difference(commands)):
            return []
        return [future.index for future in commands if not future.done()] if len(commands) == len(futures) else []


def _check_bounds(
    kind: str, target: str, arguments: Mapping[str, JsonValue], options: Mapping[str, JsonValue], line: str
) -> None:
    """Raise StepError if a value or a time of a new command is beyond its bound."""
    of_call = cast("list[JsonValue]", arguments["args"] if kind == "call" else [])
    named = cast("Mapping[str, JsonValue]", arguments["kwargs"] if kind == "call" else arguments)
    times = {**options, **(arguments if kind in ("wait", "sleep") else {})}
    try:
        for index, value in enumerate(of_call):
            bounds.check(value, f"args[{index}]")
        for name, value in named.items():
            bounds.check(value, name)
        for name in ("timeout_s", "seconds"):
            if times.get(name) is not None:
                bounds.duration_of(times[name], name, may_be_zero=True)
    except bounds.OutOfBoundsError as error:
        what = f"wf.{kind}({target!r})" if target else f"wf.{kind}"
        raise StepError(f"{what}: {error} (at {line})", code="bad_arguments") from None


def _is_stopped(outcome: CommandOutcome) -> bool:
    return outcome.error is not None and outcome.error.code == STOPPED


def _failure_of(error: BaseException) -> StepError:
    """Return the failure of a workflow whose code raised an error, with the line."""
    message, code = (
        (str(error), error.code)
        if isinstance(error, StepError)
        else (f"{type(error).__name__}: {error}", "workflow_error")
    )
    has_line = isinstance(error, StepError) and message.endswith(")") and " (at " in message
    return StepError(message if has_line else f"{message} (at {_raised_at(error)})", code=code)


def _first_of(error: BaseException | None) -> BaseException | None:
    """Return the first failure of a TaskGroup; others as they are."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0].with_traceback(error.exceptions[0].__traceback__ or error.__traceback__)
    return error


def _raised_at(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"


def _line() -> str:
    """Return the line of the workflow's code that is executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        _OUR_MODULES
    ):  # f_code would be audited each time
        frame = frame.f_back
    return f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _waiting_line(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"{Path(frames[0].f_code.co_filename).name}:{frames[0].f_lineno}" if frames else "an unknown line"
