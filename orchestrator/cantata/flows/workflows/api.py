"""The object by which the code of a workflow gives commands."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import math
import re
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar, cast, overload

from cantata import bounds
from cantata.errors import StepError
from cantata.flows.chains.steps_of_nodes import unknown_name
from cantata.flows.workflows.answer_form import AnswerForm
from cantata.flows.workflows.conversion import jsonable, result_of
from cantata.flows.workflows.decorator import reference_of
from cantata.flows.workflows.history import CommandOutcome
from cantata.flows.workflows.replay import AllFuture, ContinueAs, Replay
from cantata.values import JsonValue

Params = ParamSpec("Params")
Result = TypeVar("Result")
Query = TypeVar("Query", bound=Callable[..., Any])

NO_DEFAULT: Any = object()
_MAX_FLOAT = sys.float_info.max
_NAME = re.compile(r"[\w.-]+")


class Workflow:
    """Gives the commands of a workflow; each is a step of its run, executed by a worker and recorded once.

    The methods that call something return a future at once: the step begins whether or not it is awaited. Awaiting it returns the
    step's output, or raises StepError if it failed.
    """

    def __init__(self, replay: Replay, options: Mapping[str, JsonValue] | None = None) -> None:
        """Create the object for one replay; users get it as the first argument of their function."""
        self._replay = replay
        self._options = dict(options or {})
        self.run_id = replay.run_id
        """The id of the run in which the workflow began: a fork that does not begin anew has that of its source."""

    def options(
        self,
        *,
        timeout_s: float | None = None,
        retries: int | None = None,
        at_most_once: bool | None = None,
        queue: str | None = None,
    ) -> Workflow:
        """Return the same workflow with options for the commands that it gives.

        Args:
            timeout_s: The time limit of one attempt, in seconds.
            retries: Attempts after the first one.
            at_most_once: Whether to leave it to a person, instead of repeating it, if its worker dies.
            queue: The queue of a function's or tool's step.
        """
        if (timeout_s is not None and not 0 < timeout_s < math.inf) or (retries is not None and retries < 0):
            raise StepError(
                f"wf.options: timeout_s={timeout_s!r} must be above 0, retries={retries!r} at least 0",
                code="bad_arguments",
            )
        given = {"timeout_s": timeout_s, "retries": retries, "at_most_once": at_most_once, "queue": queue}
        return Workflow(
            self._replay, {**self._options, **{name: value for name, value in given.items() if value is not None}}
        )

    # --- steps ------------------------------------------------------------------------------------------------------

    def agent(self, name: str, text: str | Mapping[str, JsonValue] = "") -> asyncio.Future[Any]:
        """Ask an agent or a team.

        Args:
            name: Its name in the configuration.
            text: The message. A mapping, with the message as `text`, also fills the placeholders of the agent's texts.

        Returns:
            A future of the answer: a text, or a value if the agent has structured output.
        """
        given = {"text": text} if isinstance(text, str) else dict(text)
        return self._named("agent", name, given)

    def tool(self, name: str, /, **arguments: Any) -> asyncio.Future[Any]:
        """Call a tool of the configuration: a function, a tool of an MCP server, or a task of your own Celery application.

        Args:
            name: Its name in the configuration.
            arguments: Its arguments, which must be JSON.

        Returns:
            A future of its output, which is JSON.
        """
        return self._named("tool", name, arguments)

    def chain(self, name: str, /, **arguments: Any) -> asyncio.Future[Any]:
        """Run a chain of the configuration as a part of this run, with these inputs. The future gives its output."""
        return self._named("chain", name, arguments)

    def workflow(self, name: str, /, **arguments: Any) -> asyncio.Future[Any]:
        """Run another workflow in Python as a part of this run, with these arguments. The future gives its result, as JSON."""
        return self._named("workflow", name, arguments)

    def start(self, name: str, /, **arguments: Any) -> asyncio.Future[str]:
        """Begin another run, of a workflow in Python or a chain, exactly once. The future gives its id. It goes on when this run ends."""
        if message := unknown_name(("workflow", "chain"), name, self._replay.definitions):
            raise StepError(message, code="unknown_workflow")
        return self._replay.command(
            "start", name, _json(arguments), self._options, CommandOutcome.result, f"start/{name}"
        )

    @overload
    def call(
        self, function: Callable[Params, Coroutine[Any, Any, Result]], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> asyncio.Future[Result]: ...

    @overload
    def call(
        self, function: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
    ) -> asyncio.Future[Result]: ...

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Call a function in a step of its own. The future gives its result. It may do I/O, and be `async`.

        Its arguments and its result are JSON in between, and converted to the types that the function declares. Workers import it by its
        module and name, so it is defined at the top of a module. Raises TypeError for another function.
        """

        def convert(outcome: CommandOutcome) -> Any:
            return result_of(function, outcome.result())

        arguments = {"args": list(args), "kwargs": kwargs}
        return self._replay.command(
            "call", reference_of(function), _json(arguments), self._options, convert, function.__name__
        )

    def wait(
        self,
        name: str,
        asks: Any = None,
        *,
        answer_type: Any = None,
        timeout_s: float | None = None,
        default: Any = NO_DEFAULT,
        **options: Any,
    ) -> asyncio.Future[Any]:
        """Wait for a signal to `name`, such as an approval. The future gives its value.

        Args:
            name: Names the step for `submit inbox`, `submit runs signal` and pages.
            asks: The question, or its context, shown to the person who answers.
            answer_type: A pydantic model, a dataclass or another type: the answer is converted to it, and refused if it does not fit.
            timeout_s: How long to wait, in seconds; for ever if None.
            default: The value after that time. Without it StepError is raised, with the code timeout.
            options: Those of `cantata.flows.waits.WaitOptions`: `question`, `answer_schema`, `who`, `remind_after_s`, ...

        Raises:
            StepError: From the future: no answer came in time (`timeout`), or one that came before the wait does not fit (`bad_answer`).
        """
        if not _NAME.fullmatch(name):
            raise StepError(
                f"wf.wait: {name!r} is no name for a signal; use letters, digits, '-', '_' and '.'",
                code="bad_arguments",
            )
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise StepError(f"wf.wait: timeout_s={timeout_s!r} must be above 0", code="bad_arguments")

        answer = AnswerForm(name, answer_type, options)

        def convert(outcome: CommandOutcome) -> Any:
            if outcome.timed_out and default is NO_DEFAULT:
                raise StepError(f"no signal {name!r} came within {timeout_s:g} s", code="timeout")
            return default if outcome.timed_out else answer.convert(outcome.result())

        asked = asks if isinstance(asks, Mapping) or asks is None else {"question": asks}
        arguments = _json({"asks": asked, "timeout_s": timeout_s, **answer.params})
        return self._replay.command("wait", name, arguments, {}, convert, f"wait/{name}")

    async def signals(self, name: str) -> AsyncIterator[Any]:
        """Yield the values of all signals to `name`, in order and without end: `async for value in wf.signals("order")`."""
        while True:
            yield await self.wait(name)

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        """Sleep, for seconds or for months: no worker waits meanwhile."""
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not -_MAX_FLOAT <= seconds <= _MAX_FLOAT
        ):
            raise StepError(f"wf.sleep takes a number of seconds, not {seconds!r}", code="bad_arguments")
        return self._replay.sleep(max(0.0, float(seconds)))

    async def gather(self, *awaitables: Awaitable[Any], return_exceptions: bool = False) -> list[Any]:
        """Await all, and return their results in order. When all are over, the first failure is raised, unless `return_exceptions`."""
        futures = [asyncio.ensure_future(each) for each in awaitables]
        await AllFuture(self._replay, futures)
        if return_exceptions:
            return [
                asyncio.CancelledError() if each.cancelled() else each.exception() or each.result() for each in futures
            ]
        return [future.result() for future in futures]

    def continue_as(self, **arguments: Any) -> NoReturn:
        """End this history, and begin the workflow again with these arguments, in the same run: for loops without end.

        Commands that are open are stopped. The result is that of the last history.
        """
        given = _json(arguments)
        if excess := bounds.find(given):
            raise StepError(f"wf.continue_as: {excess.of('')}", code="bad_arguments")
        raise ContinueAs(given)

    def _named(self, kind: str, name: str, arguments: Mapping[str, Any]) -> asyncio.Future[Any]:
        if message := unknown_name((kind,), name, self._replay.definitions):
            raise StepError(message, code=f"unknown_{kind}")
        return self._replay.command(kind, name, _json(arguments), self._options, CommandOutcome.result, name)

    def query(self, function: Query) -> Query:
        """Register a plain function of the code, under its name, that answers questions: `submit runs query RUN NAME`.

        It is called where the code waits or ended, in the process that asks. It only reads: it gives no commands.
        """
        if inspect.iscoroutinefunction(function):
            raise StepError(
                f"query {function.__name__!r} is async: it only reads, so write `def` without async",
                code="bad_arguments",
            )
        self._replay.queries[function.__name__] = function
        return function

    # --- values that are the same in every replay -------------------------------------------------------------------

    def now(self) -> datetime.datetime:
        """Return the time, in UTC: when the code was woken. It stands still until the next await."""
        return datetime.datetime.fromtimestamp(self._replay.loop.now, datetime.UTC)

    def random(self) -> float:
        """Return a random number from 0 to 1."""
        return self._replay.random.random()

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.UUID(int=self._replay.random.getrandbits(128), version=4)

    def patched(self, name: str) -> bool:
        """Return whether to take the new code of a change: False in a run that went past this line with the old code."""
        return self._replay.patched(name)


def _json(arguments: Mapping[str, Any]) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", jsonable(arguments, "an argument"))
