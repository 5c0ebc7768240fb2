"""Executes steps when it is told to: the ledger and the code of workers in a process of their own, without Celery.

`python -m tests.integration.workflows.hands URL` takes calls as lines of JSON, and replies with a line for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from celery.app.task import Context

from cantata.engine.dispatch.celery_app import Carried
from cantata.engine.limits.step_costs import Costs
from cantata.flows.graph import Spec
from cantata.flows.workflows.history import CommandOutcome
from cantata.flows.workflows.replay import Replay
from cantata.ledger.records import AttemptRecord, Begun
from cantata.ledger.redis.keys import shard_of
from cantata.testing.inline import _LocalApp, _log_plainly
from cantata_workers.process.duties import sweep_once
from cantata_workers.process.message import Delivery, MessageExecution
from cantata_workers.process.process import Process
from cantata_workers.steps import workflow_steps
from cantata_workers.steps.execute import execute

Message = tuple[str, list[str], str, str]
"""The run, its steps, the kind of the task and the queue."""


class NoCosts(Costs):
    """Takes no step for cheap, so that steps are executed in the order of their messages."""

    def is_cheap(self, definitions: str, spec: Spec) -> bool:
        """Return what the spec says."""
        return bool(spec.cheap or spec.decides)

    def cheap_names(self, definitions: str) -> str:
        """Return no names."""
        return ""


class Hands:
    """Begins, executes and records steps, one after the other or several at once."""

    def __init__(self, url: str) -> None:
        _log_plainly()
        self.app = _LocalApp()
        self._process = Process(url, f"hands-{os.getpid()}", send=self.app.send_ready, is_alone=True, lease_s=600)
        self._process.stop()  # renewing leases: it could renew the one that `crash` lets run out
        self._steps = self._process.ledger.steps
        self._steps.refuse = self._refuse  # type: ignore[method-assign]
        self._held: dict[str, tuple[Begun, AttemptRecord | None, ExitStack]] = {}
        self.refused: list[str] = []
        """Why steps were refused."""
        self.lost: list[str] = []
        """Signals that came for a wait which the code had given up."""
        receive = Replay._receive

        def receive_all(replay: Replay, indexes: Any, outcomes: Any) -> None:
            for index in indexes:
                if replay._open[index][0].cancelled() and _is_signal(replay, index, outcomes[index]):
                    self.lost.append(f"{replay.commands[index].target} {outcomes[index].output!r}")
            receive(replay, indexes, outcomes)

        Replay._receive = receive_all  # type: ignore[method-assign, assignment]

    def message(self, run_id: str, steps: list[str], kind: str, queue: str) -> None:
        """Execute a message, as workers do."""
        MessageExecution(self.app, self._process, run_id, steps, Delivery(kind, queue, 0), Carried(Context())).run()

    def begin(self, run_id: str, step_id: str) -> str:
        """Begin and execute a step, and record nothing yet; return its lease, empty if the ledger did not grant it."""
        begun = self._steps.begin(run_id, step_id, self._process.owner)
        if isinstance(begun, str):
            return ""
        stack = ExitStack()
        stack.enter_context(self._process.leased(begun))
        self._held[begun.lease] = begun, execute(self._process, begun), stack
        return begun.lease

    def commit(self, lease: str) -> None:
        """Record what such a step gave."""
        begun, record, stack = self._held.pop(lease)
        with stack:
            if record is None:
                return
            committed = self._steps.commit(begun, record.outcome, output=record.output, info=record.info)
            self.app.send_ready([(begun.run_id, each) for each in committed.sends])
            self.app.send_ready(committed.next_runs)

    def release(self, lease: str) -> None:
        """Give such a step back, as a worker that stops does."""
        begun, _, stack = self._held.pop(lease)
        with stack:
            self._steps.release(begun)

    def crash(self, lease: str) -> None:
        """Forget such a step, as a worker that was killed, and let its lease run out."""
        _, _, stack = self._held.pop(lease)
        with stack:
            redis = self._process.ledger.redis
            for key in redis.scan_iter("*:leases"):
                redis.zadd(key, {lease: 1}, xx=True)  # none has it if the step was stopped meanwhile

    def sweep(self, run_id: str) -> None:
        """Fire timers, and send what was lost."""
        sweep_once(self.app, self._process.ledger, sorted({0, shard_of(run_id)}))

    def measure(self, costs_count: bool) -> None:
        """Have measured costs decide what is executed before what is in front of it is recorded; or nothing."""
        self._process.costs = Costs() if costs_count else NoCosts()

    def forget(self) -> None:
        """Drop the workflows that are kept in memory."""
        workflow_steps._discard_kept()

    def do(self, what: str, *given: Any) -> tuple[Any, list[Message], list[str], list[str]]:
        """Do one of the above; return its result, the new messages, and what was refused and lost."""
        result = getattr(self, what)(*given)
        messages = [(each.run_id, each.steps, each.delivery.kind, each.delivery.queue) for each in self.app.messages]
        self.app.messages.clear()
        refused, lost = self.refused, self.lost
        self.refused, self.lost = [], []
        return result, messages, refused, lost

    def _refuse(self, run_id: str, step_id: str, attempt: int, owner: str, why: str, **_: object) -> None:
        self.refused.append(f"{step_id}: {why}")
        type(self._steps).refuse(self._steps, run_id, step_id, attempt, owner, why)


def _is_signal(replay: Replay, index: int, outcome: CommandOutcome) -> bool:
    return replay.commands[index].kind == "wait" and outcome.error is None and not outcome.timed_out


class OtherHands:
    """The same in another process, with another order of sets of texts."""

    def __init__(self, url: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.integration.workflows.hands", url]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def do(self, what: str, *given: Any) -> tuple[Any, list[Message], list[str], list[str]]:
        """Do what the other process is told, as `Hands.do`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *given]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the other process ended"
        result, messages, refused, lost = json.loads(line)
        return result, [tuple(each) for each in messages], refused, lost

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Do what the lines of standard input say."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print
    hands = Hands(sys.argv[1])
    for line in sys.stdin:
        what, *given = json.loads(line)
        out.write(json.dumps(hands.do(what, *given)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
