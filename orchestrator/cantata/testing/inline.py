"""Runs in the test's own process: the ledger and the handlers of workers, without Celery, worker processes and waiting.

submit ──▶ queue of messages in this process ──▶ begin, execute, commit ──▶ queue ──▶ … ──▶ the run is over
                                                   nothing is ready: signal a waiting step, else skip to the next timer
"""

from __future__ import annotations

import atexit
import inspect
import os
import re
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import structlog
from celery.app.task import Context

from cantata.client.client import Client
from cantata.client.runs import ChainRun, TurnRun
from cantata.config import loading as configuration
from cantata.engine.dispatch.celery_app import App, Carried
from cantata.engine.fleet import clock_skip
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from cantata.flows.graph import is_named
from cantata.flows.wire import ChainRequest, ChainResponse, RunResult, TurnRequest
from cantata.flows.workflows.decorator import reference_of
from cantata.ledger.redis.keys import shard_of
from cantata.ledger.runs.results import is_over
from cantata.operation.embedded import Stack
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue
from cantata_workers.process.config_folder import local_folder
from cantata_workers.process.duties import sweep_once
from cantata_workers.process.message import Delivery, MessageExecution
from cantata_workers.process.process import Process
from cantata_workers.tools import functions

Chain = ChainRequest | Mapping[str, Any] | str | Path | Callable[..., Any]
"""A chain, or a workflow in Python."""

Value = TypeVar("Value")

KEPT = {"at_most_once", "cheap", "description", "hidden", "parameters", "pure", "retries", "timeout_s", "values"}
"""The settings of a tool that hold for the function in its place too."""

PERMIT_POLL_S = 0.005  # a run that waits for a rate limit, which follows the real clock, does not keep a processor busy
SAME_WORD = 0.75  # similarity of two words, from 0 to 1, of which one is taken for the other misspelt
RESULT_S = 10.0  # for the result of a run that is over


@overload
def run_inline(
    flow: TurnRequest,
    input: None = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    definitions: Definitions | str | Path | None = None,
    signals: Mapping[str, JsonValue] | None = None,
    model: str | None = None,
) -> RunResult: ...
@overload
def run_inline(
    flow: Chain,
    input: Mapping[str, Any] | None = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    definitions: Definitions | str | Path | None = None,
    signals: Mapping[str, JsonValue] | None = None,
    model: str | None = None,
) -> ChainResponse: ...
def run_inline(
    flow: TurnRequest | Chain,
    input: Mapping[str, Any] | None = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    definitions: Definitions | str | Path | None = None,
    signals: Mapping[str, JsonValue] | None = None,
    model: str | None = None,
) -> ChainResponse | RunResult:
    """Run a chain, a workflow in Python or a turn in this process, in milliseconds, and return its result.

    Steps run one after the other. When none is ready, time is skipped to the run's next timer. Sessions and memory last until the end of
    the test.

    Args:
        flow: A chain request as data, by the name of its file, or by its name in the configuration; a workflow in Python, by its
            function or its name in the configuration; or a TurnRequest.
        input: Replaces the `initial_input` of a chain request; of a workflow the arguments of its function by name.
        tools: Name → function, in place of the configuration's tool or skill with this name, or beside them; also in place of the
            function with this name that a workflow calls. `module:name` → function, in place of that function wherever it is called.
        definitions: The configuration; if None, it is searched for as the command line does. Without one, a workflow's function is enough.
        signals: The values of waiting steps, by the step's id or the end of it. Steps that wait at once are signalled in this order.
        model: In place of the configuration's default model; `openai/...` reaches the fixture `scripted_model`.

    Raises:
        ConfigError: The request or the configuration has faults, or a step waits for a signal that is not among `signals`, without a
            time-out.
    """
    return _runner().run(flow, input, tools or {}, definitions, signals or {}, model)


class _Message(NamedTuple):
    """A message of ready steps."""

    run_id: str
    steps: list[str]
    delivery: Delivery


class _LocalApp(App):
    """A Celery app without a broker: its messages stay in this process. It carries no links and joins, so the ledger sends all steps."""

    def __init__(self) -> None:
        super().__init__("cantata-inline")
        self.messages: deque[_Message] = deque()

    @contextmanager
    def producer_or_acquire(self, producer: Any = None) -> Iterator[object]:  # type: ignore[override]  # nobody uses what it yields
        """Yield in place of a connection."""
        yield object()

    def send_task(  # type: ignore[override]  # as above
        self, name: str, args: Any = None, kwargs: Any = None, *, producer: Any = None, **options: Any
    ) -> None:
        """Keep a message."""
        delivery = Delivery(name, self.step_queue(options["queue"]), options.get("priority") or 0)
        self.messages.append(_Message(args[0], args[1], delivery))


class Runner:
    """The server and the worker state of this process."""

    def __init__(self) -> None:
        _log_plainly()
        home = tempfile.mkdtemp(prefix="cantata-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        stack = Stack.start(home, server_only=True)
        atexit.register(stack.stop)
        self.client = Client(stack.url, config=Definitions())
        self.client.engine.publisher = self.app = _LocalApp()
        self.process = Process(stack.url, "inline", send=self.app.send_ready, is_alone=True, interrupts=True)
        atexit.register(self.process.stop)
        self._test = ""
        self.lock = threading.Lock()

    def run(
        self,
        flow: TurnRequest | Chain,
        given: Mapping[str, Any] | None,
        tools: Mapping[str, Callable[..., Any]],
        config: Definitions | str | Path | None,
        signals: Mapping[str, JsonValue],
        model: str | None = None,
    ) -> ChainResponse | RunResult:
        if not isinstance(config, Definitions):
            path = configuration.find(None if config is None else str(config))
            config = (
                _definitions_for(flow)
                if path is None and callable(flow)
                else configuration.load_sound(path).definitions
            )
        fakes = {name: f"inline:{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for name in tools if ":" not in name}
        client = self.client.with_definitions(_with_functions(config.with_model(model), fakes))
        with self.lock:
            self._begin_test()
            functions.replace_loaded(
                {**tools, **{fakes[name]: tools[name] for name in fakes}}, local_folder(config.folder)
            )
            run = submit(client, flow, given)
            self._execute_ready()
            while not is_over(run.status()):
                self._go_on(run, signals)
                self._execute_ready()
        check_signals(run, signals)
        _check_tools(run, tools, config)
        return run.result(timeout_s=RESULT_S)

    def _begin_test(self) -> None:
        """Empty the ledger when another test of pytest begins."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        self.app.messages.clear()
        if test != self._test:
            self._test = test
            self.client.redis.flushdb()

    def _execute_ready(self) -> None:
        """Execute steps until none is ready."""
        while self.app.messages:
            run_id, steps, delivery = self.app.messages.popleft()
            if delivery.kind == "run.start" and self.client.ledger.runs.request_of(run_id)[0] == "webhook":
                continue  # a test posts nothing
            MessageExecution(self.app, self.process, run_id, steps, delivery, Carried(Context())).run()

    def _go_on(self, run: TurnRun | ChainRun, signals: Mapping[str, JsonValue]) -> None:
        """Signal the steps that wait; if there is no signal for them, skip to the run's next timer."""
        steps = run.record(()).steps
        waiting = [step_id for step_id, step in steps.items() if step.awaits_signal]
        values = values_for(waiting, signals)
        for step_id, value in values.items():
            run.signal(step_id, value)
        if values:
            return
        if self.skip_to_timer(run.run_id):
            return
        if waiting:
            raise ConfigError(
                f"the run waits for a signal to {', '.join(map(repr, waiting))}: give its value in `signals`"
            )
        refused = ", ".join(repr(step_id) for step_id, step in steps.items() if step.state == "sent")
        raise ConfigError(f"this process cannot execute {refused or 'the run'}: the log has the reason")

    def skip_to_timer(self, run_id: str) -> bool:
        """Skip time to a run's next timer, and send what is due then; return False if it has none but its deadline."""
        timers = clock_skip.timers_of(self.client.redis, run_id)
        own = {kind: left_s for kind, left_s in timers.items() if kind != "deadline"}
        if own.keys() == {"permit"}:
            time.sleep(PERMIT_POLL_S)
        if own:
            clock_skip.bring_nearer(self.client.redis, max(0.001, min(own.values())))
            sweep_once(self.app, self.client.ledger, sorted({0, shard_of(run_id)}))
        return bool(own)


def submit(client: Client, flow: TurnRequest | Chain, given: Mapping[str, Any] | None) -> TurnRun | ChainRun:
    """Submit a turn, a chain or a workflow in Python."""
    if isinstance(flow, TurnRequest):
        return client.submit_turn(**{name: getattr(flow, name) for name in flow.model_fields_set})
    if callable(flow) or (isinstance(flow, str) and flow in client.definitions.workflows):
        return client.submit_workflow(flow, given or {})
    return client.submit_chain(flow, initial_input=given)


def values_for(step_ids: Iterable[str], signals: Mapping[str, Value]) -> dict[str, Value]:
    """Return the signals' values by the ids of the steps that they are for, in the order of the signals; for one of these, of its steps."""
    names = sorted(signals, key=len)  # the longest name that means a step counts
    found = {
        step_id: name for step_id in sorted(step_ids, key=_with_numbers) for name in names if is_named(step_id, name)
    }
    return {step_id: signals[name] for name in signals for step_id, its in found.items() if its == name}


def _with_numbers(step_id: str) -> list[str | int]:
    """Return the parts of a step's id, so that the second of a workflow's commands comes before the tenth."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", step_id)]


def check_signals(run: TurnRun | ChainRun, signals: Mapping[str, object]) -> None:
    """Raise ConfigError if a wait of a run that is over timed out, and a signal for none of its steps is called almost as that."""
    steps = run.record(()).steps if signals else {}
    late = [
        step_id for step_id, step in steps.items() if step.info.get("timed_out") and not values_for([step_id], signals)
    ]
    for name in signals:
        near = nearest(name, [step_id.rpartition("/")[2] for step_id in late], cutoff=SAME_WORD)
        if near and not any(is_named(step_id, name) for step_id in steps):
            raise ConfigError(
                f"signals={{{name!r}: ...}} is for no step of the run, whose step {near!r} waited in vain{hint(near)}"
            )


def _check_tools(run: TurnRun | ChainRun, tools: Iterable[str], definitions: Definitions) -> None:
    """Raise ConfigError for a name in `tools` that may be misspelt: the run called nothing of this name, and nothing else has it."""
    names = {name for name in tools if ":" not in name}
    specs = [step.spec for step in run.record(()).steps.values()] if names else []
    known = {*definitions.tools, *definitions.skills, *(spec.work.rpartition(":")[2] for spec in specs)}
    workflows = {
        definitions.workflows[str(spec.params["workflow"])] for spec in specs if spec.kind == "workflow.advance"
    }
    loaded = (inspect.unwrap(functions.load(each.function, local_folder(definitions.folder))) for each in workflows)
    for name in sorted(names - known - {name for function in loaded for name in function.__globals__}):
        raise ConfigError(
            f"tools={{{name!r}: ...}}: the run called nothing of this name, and no tool has it{hint(nearest(name, known))}"
        )


@cache
def _runner() -> Runner:
    return Runner()


def _log_plainly() -> None:
    """Pass log events on to the logging module, where pytest collects them; by default they are printed to standard output."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )


def _definitions_for(flow: Callable[..., Any]) -> Definitions:
    """Return definitions with a workflow's function alone. Raises ConfigError for one that no worker could import."""
    try:
        return Definitions(workflows={flow.__name__: PythonWorkflow(function=reference_of(flow))})
    except TypeError as error:
        raise ConfigError(str(error), source="workflow") from None


def _with_functions(definitions: Definitions, names: Mapping[str, str]) -> Definitions:
    """Return definitions whose tools and skills with these names call the functions with these names."""
    if not names:
        return definitions
    tools, skills = dict(definitions.tools), dict(definitions.skills)
    for name, function in names.items():
        section = skills if name in skills else tools
        kept = section[name].model_dump(include=KEPT) if name in section else {}
        section[name] = Tool(**kept, function=function)
    return definitions.model_copy(update={"tools": tools, "skills": skills})
