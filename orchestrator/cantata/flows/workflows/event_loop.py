"""An event loop for the code of a workflow: deterministic, without I/O, and with a clock that stands still while the code runs."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Never

from cantata.errors import StepError
from cantata.flows.workflows import guard

REFUSED = (
    "run_in_executor", "getaddrinfo", "getnameinfo", "create_connection", "create_server", "sendfile", "start_tls",
    "create_unix_connection", "create_unix_server", "connect_accepted_socket", "create_datagram_endpoint", "connect_read_pipe",
    "connect_write_pipe", "subprocess_shell", "subprocess_exec", "add_reader", "add_writer", "sock_recv", "sock_sendall",
    "sock_connect", "sock_accept", "add_signal_handler", "call_soon_threadsafe",
)  # fmt: skip

AS_COMPLETED = (
    "asyncio.as_completed begins coroutines in another order in each process: "
    "give it tasks, as in asyncio.as_completed([asyncio.create_task(each) for each in coroutines])"
)
MAX_AWAITS_IN_FINALLY = 100  # of one task that is dropped
_UNSET = object()


class NumberedFuture(asyncio.Future[Any]):
    """A future whose hash is the number of its creation, so that sets of futures have the same order in every replay."""

    def __init__(self, loop: WorkflowLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class NumberedTask(asyncio.Task[Any]):
    """A task with such a hash."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: WorkflowLoop, **options: Any) -> None:
        self._number = loop.next_number()
        self.context = options.pop("context", None) or contextvars.copy_context()
        super().__init__(coroutine, loop=loop, context=self.context, **options)

    def __hash__(self) -> int:
        return self._number


class WorkflowLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order in which they were scheduled, until none is left.

    `start_timer` is called with the seconds of each timer, and returns a future that is done when the time has passed.
    """

    def __init__(self, start_timer: Callable[[float], asyncio.Future[Any]]) -> None:
        self.now = 0.0
        self.tasks: list[NumberedTask] = []
        """Tasks that are not done."""
        self.timers: list[asyncio.TimerHandle] = []
        """Timers that may still fire."""
        self._ready: deque[asyncio.Handle] = deque()
        self._given: dict[contextvars.ContextVar[Any], Any] = {}
        """The context variables of the last caller of `run_ready`."""
        self._numbers = 0
        self._start_timer = start_timer

    def next_number(self) -> int:
        """Return a number that no future or task of this loop has."""
        self._numbers += 1
        return self._numbers

    def run_ready(self) -> None:
        """Run callbacks until none is ready.

        Tasks of earlier calls get the caller's context variables, such as those of log lines, in place of an earlier caller's. A variable
        that their own code has set stays.
        """
        given = dict(contextvars.copy_context().items())
        for task in self.tasks:
            for variable, value in given.items():
                before = self._given.get(variable, _UNSET)
                if task.context.get(variable, before) is before:
                    task.context.run(variable.set, value)
        self._given = given
        asyncio._set_running_loop(self)  # as every event loop does
        try:
            guard.refuse_io()
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            guard.allow_io()
            asyncio._set_running_loop(None)
            self.tasks = [task for task in self.tasks if not task.done()]

    def discard(self) -> None:
        """Drop all tasks. Their `finally` blocks are executed, and whatever they await or raise has no effect."""
        asyncio._set_running_loop(self)
        try:
            guard.refuse_io()
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # they are meant to be dropped
                for _ in range(MAX_AWAITS_IN_FINALLY):
                    try:
                        task.context.run(task.get_coro().close)  # a variable that its code sets is of no other run
                        break
                    except BaseException:  # noqa: BLE001  # of code that is executed for nothing
                        continue
        finally:
            guard.allow_io()
            self._ready.clear()
            asyncio._set_running_loop(None)

    # --- what asyncio calls -----------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]  # the stubs tie the arguments to the callback
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback after a delay in seconds, which is a step of the run."""
        handle = asyncio.TimerHandle(self.now + delay, callback, args, self, context)
        self.timers.append(handle)

        def fire(slept: asyncio.Future[Any]) -> None:
            if handle in self.timers:
                self.timers.remove(handle)
                if not slept.exception():  # its step was not stopped
                    self._ready.append(handle)

        self._start_timer(max(delay, 0.0)).add_done_callback(fire)
        return handle

    def call_at(  # type: ignore[override]  # likewise
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback for a time of this loop's clock."""
        return self.call_later(when - self.now, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle in self.timers:
            self.timers.remove(handle)

    def time(self) -> float:
        """Return the time at which this activation began, in seconds since 1970."""
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return NumberedFuture(self)

    def create_task(self, coro: Any, **options: Any) -> NumberedTask:
        """Start a task. Raises StepError for `asyncio.as_completed` of coroutines, which begins them in the order of their addresses."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "asyncio.tasks":
            if "as_completed" in frame.f_code.co_name or "AsCompleted" in frame.f_code.co_qualname:
                coro.close()
                raise StepError(AS_COMPLETED, code="workflow_error")
            frame = frame.f_back
        task = NumberedTask(coro, self, **options)
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore exceptions that nobody awaits."""

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return True: its code only runs in it."""
        return True

    def is_closed(self) -> bool:
        """Return False."""
        return False


def _refusal(name: str) -> Callable[..., Never]:
    def refuse(*_: object, **__: object) -> Never:
        raise guard.io_refused(name)

    return refuse


for _name in REFUSED:
    setattr(WorkflowLoop, _name, _refusal(_name))
