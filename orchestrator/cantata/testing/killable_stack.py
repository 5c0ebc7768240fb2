"""A stack for tests: its workers can be killed, frozen or cut off at a named point, and its time can be skipped."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

from cantata.client.client import Client
from cantata.client.runs import ChainRun, TurnRun
from cantata.engine.fleet import clock_skip, registry
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions
from cantata.flows.wire import ChainResponse, RunResult, TurnRequest
from cantata.ledger.records import owner_of
from cantata.ledger.redis.keys import namespace_of, shard_key
from cantata.ledger.runs.results import is_over
from cantata.operation import fault_points
from cantata.operation.embedded import Stack
from cantata.testing.inline import Chain, check_signals, submit, values_for
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue

OF_CLIENTS = ("accepted", "accept-replied", "fork-replied")
FAULT_POINTS = tuple(label for label in fault_points.LABELS if label not in OF_CLIENTS)
"""The points at which a worker of a test's stack can be killed, frozen or cut off."""

TOOL_SLOTS = 2
RESULT_S = 60.0  # for a run whose worker was killed; it takes two seconds longer than others
LOOK_S = 0.05  # between two looks for steps that wait, and for those of a killed worker
REACHED_S = 0.2  # for the points that a worker reaches after a run is closed
POLL_S = 0.005
UNDER_WAY = {"ready", "sent", "running", "dispatched"}
"""States of steps with which a run goes on by itself."""

Result = ChainResponse | RunResult
Signal = JsonValue | Callable[[], JsonValue]


@dataclass(frozen=True)
class ArmedFault:
    """A fault that is armed for the next worker that reaches a point."""

    file: Path

    @property
    def happened(self) -> bool:
        """Return whether a worker has reached the point."""
        return not self.file.exists()


def outcome_of(result: Result) -> tuple[str, JsonValue]:
    """Return what a run must end with whatever is killed: its status and its output."""
    return result.status, result.final_output if isinstance(result, ChainResponse) else result.output


class KillableStack:
    """An embedded stack with virtual time and fault points, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Start the stack. Its workers have the environment of this process."""
        self._fault = ArmedFault(folder / "fault")
        self._clients: list[Client] = []
        os.environ[fault_points.VARIABLE] = (
            f"@{self._fault.file}"  # for the workers: this process has imported its own points
        )
        try:
            self._stack = Stack.start(folder / "home", tools=TOOL_SLOTS, virtual_time=True)
        finally:
            del os.environ[fault_points.VARIABLE]
        self._own = Client(self._stack.url, config=Definitions())

    @property
    def url(self) -> str:
        """The URL of its Redis, for REDIS_URL."""
        return self._stack.url

    def client(self, config: Definitions | str | Path | None = None) -> Client:
        """Return a client, which is closed when the test ends. Without `config` it searches for one as the command line does."""
        client = Client(self.url, config=config)
        self._clients.append(client)
        return client

    @overload
    def submit(
        self,
        flow: TurnRequest,
        input: None = None,
        *,
        definitions: Definitions | str | Path | None = None,
        signals: Mapping[str, JsonValue] | None = None,
    ) -> TurnRun: ...
    @overload
    def submit(
        self,
        flow: Chain,
        input: Mapping[str, Any] | None = None,
        *,
        definitions: Definitions | str | Path | None = None,
        signals: Mapping[str, JsonValue] | None = None,
    ) -> ChainRun: ...
    def submit(
        self,
        flow: TurnRequest | Chain,
        input: Mapping[str, Any] | None = None,
        *,
        definitions: Definitions | str | Path | None = None,
        signals: Mapping[str, JsonValue] | None = None,
    ) -> TurnRun | ChainRun:
        """Submit a chain, a workflow in Python or a turn, and send its waiting steps their `signals`.

        The arguments are those of `run_inline`. Raises ConfigError for a workflow that is not in the configuration.
        """
        run = submit(self.client(definitions), flow, input)
        for step_id, value in (signals or {}).items():
            run.signal(step_id, value)
        return run

    def until_waiting(self, run: TurnRun | ChainRun, timeout_s: float = RESULT_S) -> None:
        """Return when a step of a run waits for a signal or sleeps. Raises TimeoutError after `timeout_s`, or when the run ends."""
        give_up = time.monotonic() + timeout_s
        while not any(step.state == "waiting_signal" for step in run.record(()).steps.values()):
            if time.monotonic() > give_up or is_over(run.status()):
                raise TimeoutError(
                    f"no step of run {run.run_id} waits for a signal or sleeps; the run is {run.status()}"
                )
            time.sleep(POLL_S)

    def skip(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Skip time: timers, time limits, reminders and retention that are due by then fire at once.

        Raises ConfigError unless the time is a number from 0.001 s.
        """
        self._stack.skip(seconds, minutes=minutes, hours=hours, days=days)

    @contextmanager
    def kill_at(self, point: str, *, times: int = 1) -> Iterator[ArmedFault]:
        """Kill the first worker that reaches a point for the `times`-th time in the block. Raises ConfigError for an unknown point."""
        with self._armed(point, times, "kill") as fault:
            yield fault

    @contextmanager
    def freeze_at(self, point: str, *, times: int = 1) -> Iterator[ArmedFault]:
        """Freeze the worker for ten seconds, which is longer than its leases last; otherwise like `kill_at`."""
        with self._armed(point, times, "freeze") as fault:
            yield fault

    @contextmanager
    def drop_at(self, point: str, *, times: int = 1) -> Iterator[ArmedFault]:
        """Cut all connections of the worker; otherwise like `kill_at`."""
        with self._armed(point, times, "drop") as fault:
            yield fault

    def survives_kills(
        self,
        flow: TurnRequest | Chain,
        input: Mapping[str, Any] | None = None,
        *,
        at: str | None = None,
        before: Callable[[], object] = tuple,
        effects: Callable[[], Sequence[object]] = tuple,
        outcome: Callable[[Result], object] = outcome_of,
        definitions: Definitions | str | Path | None = None,
        signals: Mapping[str, Signal] | None = None,
        timeout_s: float = RESULT_S,
    ) -> None:
        """Assert that a flow ends with the same outcome, and the same effects, wherever a worker is killed as if none is.

        Args:
            at: A point; if None, each of FAULT_POINTS. Workers are killed there as often as the flow reaches it, in a run for each. A test
                of one point that the flow does not reach is skipped.
            before: Called before each run, such as to empty a table.
            effects: Returns what the flow's tools have done so far, such as the rows of a table; what a run adds to it is compared.
            outcome: What of a result is compared; by default its status and output.
            signals: As of `run_inline`, also for steps that run at most once and whose worker was killed: their outcome is unknown. A
                function returns the value, such as one that looks what was done.

        Raises AssertionError. The other arguments are those of `run_inline`.
        """
        __tracebackhide__ = True

        def run(where: str = "", fault: ArmedFault | None = None) -> tuple[object, list[str]]:
            before()
            old = len(effects())
            submitted = self.submit(cast(Chain, flow), input, definitions=definitions)
            result = self._result(submitted, signals or {}, timeout_s, where, fault)
            return outcome(result), sorted(map(repr, effects()[old:]))

        undisturbed = run()
        for point in FAULT_POINTS if at is None else (at,):
            for times in itertools.count(1):
                where = f"with a worker killed at {point!r} (time {times} that it was reached)"
                with self.kill_at(point, times=times) as fault:
                    killed = run(where, fault)
                    is_reached = _comes_true(fault)
                for what, expected, found in zip(("ended with", "had the effects"), undisturbed, killed, strict=True):
                    if found != expected:
                        raise AssertionError(f"{where} the flow {what} {found}; undisturbed: {expected}")
                if not is_reached:
                    break
            if at is not None and times == 1:
                import pytest  # noqa: PLC0415  # not needed elsewhere

                pytest.skip(f"the flow does not reach {point!r}")

    def clear(self) -> None:
        """Delete all runs, sessions, memories and limits, disarm faults and close clients: another test begins."""
        self._fault.file.unlink(missing_ok=True)
        while self._clients:
            self._clients.pop().close()
        redis = self._own.redis
        for key in redis.scan_iter(match=f"{namespace_of(redis)}:{{*", count=1000):
            if not str(key).endswith("}:sweep"):  # the lock of the sweeper
                redis.unlink(key)

    def stop(self) -> None:
        """Stop the stack."""
        self.clear()
        self._own.close()
        self._stack.stop()

    def _result(
        self,
        run: TurnRun | ChainRun,
        signals: Mapping[str, Signal],
        timeout_s: float,
        where: str,
        fault: ArmedFault | None,
    ) -> Result:
        """Return the result of a run, whose waiting steps get their signals. When only timers are left, time is skipped to the next.

        The steps of a worker that was killed are recovered at once; the sweep itself takes two seconds. Raises AssertionError if a step
        that runs at most once had that worker, and has no signal.
        """
        __tracebackhide__ = True
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            with suppress(TimeoutError):
                result = run.result(LOOK_S)
                check_signals(run, signals)
                return result
            if fault and fault.happened:
                self._expire_dead_leases()
            steps = run.record(()).steps
            waiting = {step_id: step for step_id, step in steps.items() if step.awaits_signal}
            values = values_for(waiting, signals)
            for step_id, value in values.items():
                run.signal(step_id, value() if callable(value) else value)
            uncertain = [step_id for step_id in waiting.keys() - values if waiting[step_id].spec.kind != "wait"]
            if uncertain:
                unknown = f"step {uncertain[0]!r} runs at most once and its outcome is unknown"
                todo = f"give one in signals={{{uncertain[0].rpartition('/')[2]!r}: ...}}"
                raise AssertionError(f"{where} the run waits for a person: {unknown}; {todo}")
            if not values and not any(step.state in UNDER_WAY for step in steps.values()):
                self._skip_to_timer(run.run_id)
        raise TimeoutError(f"{where} run {run.run_id} is not over after {timeout_s:g} s; it goes on".strip())

    def _skip_to_timer(self, run_id: str) -> None:
        """Skip time to a run's next timer, if it has one beside its deadline. Permits follow the real clock."""
        timers = clock_skip.timers_of(self._own.redis, run_id)
        own = [left_s for kind, left_s in timers.items() if kind != "deadline"]
        if own and "permit" not in timers:
            self.skip(max(0.001, min(own)))

    def _expire_dead_leases(self) -> None:
        ledger = self._own.ledger
        leases = ledger.leases.names()
        connected = registry.connected(ledger.redis, shard_key(ledger.redis, 0)) if leases else None
        if dead := [lease for lease in leases if connected and owner_of(lease.split("|")[2]) not in connected]:
            ledger.leases.expire(dead)
            self.skip(0.001)  # wakes the sweeper

    @contextmanager
    def _armed(self, point: str, times: int, kind: str) -> Iterator[ArmedFault]:
        if point not in FAULT_POINTS:
            raise ConfigError(
                f"there is no fault point {point!r}{hint(nearest(point, FAULT_POINTS))}; cantata.testing.FAULT_POINTS lists them"
            )
        written = self._fault.file.with_suffix(".new")
        written.write_text(f"{point}:{times}:{kind}:all\n", "utf-8")
        self._fault.file.with_suffix(".count").unlink(missing_ok=True)
        written.replace(self._fault.file)  # at once: workers read it all the time
        try:
            yield self._fault
        finally:
            self._fault.file.unlink(missing_ok=True)


def _comes_true(fault: ArmedFault) -> bool:
    """Return whether a fault happens, now or in a moment."""
    give_up = time.monotonic() + REACHED_S
    while not fault.happened and time.monotonic() < give_up:
        time.sleep(POLL_S)
    return fault.happened
