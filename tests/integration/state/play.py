"""Plays the workers of a run, so that a test reads as what happens to its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

from cantata.flows.graph import START, Edge, Graph, Outcome, Step
from cantata.flows.wire import RunStatus
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, Begun, Committed, RunSession, StepRecord, Swept
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.values import ErrorInfo, JsonValue


def work(step_id: str, **spec: object) -> Step:
    """A step that a tools worker does."""
    return Step.model_validate({"kind": "work", "queue": "tools", "id": step_id, **spec})


def wait(step_id: str, **spec: object) -> Step:
    """A step that waits for a signal."""
    return Step.model_validate({"kind": "wait", "id": step_id, **spec})


def row(*step_ids: str) -> tuple[Edge, ...]:
    """Each before the next."""
    return tuple(Edge(source=a, target=b) for a, b in pairwise(step_ids))


def fan_in(sources: tuple[str, ...], target: str) -> tuple[Edge, ...]:
    """All before one."""
    return tuple(Edge(source=source, target=target) for source in sources)


class Play:
    """One run, and a worker who does what the test says."""

    def __init__(
        self,
        ledger: Ledger,
        run_id: str = "run",
        *,
        kind: str = "turn",
        timeout_s: float = 60,
        max_attempts: int = 3,
        max_steps: int = 100_000,
        retention_s: float = 60,
        text: str | None = None,
        session: RunSession | None = None,
        definitions: str = "{}",
        webhooks: Sequence[JsonValue] = (),
        labels: Mapping[str, str] | None = None,
        max_deliveries: int | None = None,
    ) -> None:
        self.ledger = ledger
        self.run_id = run_id
        self.shard = shard_key(None, shard_of(run_id))
        request = "{}" if text is None else to_json({"text": text})
        self.accepted = ledger.runs.accept(
            run_id,
            kind=kind,
            request=request,
            definitions=definitions,
            timeout_s=timeout_s,
            max_attempts=max_attempts,
            max_steps=max_steps,
            retention_s=retention_s,
            session=session,
            webhooks=webhooks,
            labels=labels,
            max_deliveries=max_deliveries,
        )
        self.new = self.accepted.new

    def plan(
        self, *steps: Step, edges: tuple[Edge, ...] = (), terminals: tuple[str, ...] = (), ahead: Ahead | None = None
    ) -> Committed:
        """Have the run's first step grow these."""
        return self.do(START, fragment=Graph(steps=steps, edges=edges, terminals=terminals), ahead=ahead)

    def begin(self, step_id: str, *, owner: str = "worker") -> Begun:
        """Begin a step that may be begun."""
        answer = self.ledger.steps.begin(self.run_id, step_id, owner)
        assert isinstance(answer, Begun), f"{step_id} is refused: {answer}"
        return answer

    def refusal(self, step_id: str) -> str:
        """Why a step may not be begun."""
        answer = self.ledger.steps.begin(self.run_id, step_id, "another")
        assert not isinstance(answer, Begun)
        return answer

    def commit(
        self, begun: Begun, output: JsonValue = None, *, outcome: Outcome | None = None, ahead: Ahead | None = None
    ) -> Committed:
        """Tell an outcome as the workers do."""
        outcome = outcome or Outcome(output=output)
        info: dict[str, JsonValue] = {"takes": list(outcome.takes)} if outcome.takes != ("done",) else {}
        if outcome.error is not None:
            info["error"] = outcome.error.model_dump()
        return self.ledger.steps.commit(begun, outcome, output=to_json(outcome.output), info=info, ahead=ahead)

    def do(
        self,
        step_id: str,
        output: JsonValue = None,
        *,
        takes: tuple[str, ...] = ("done",),
        fragment: Graph | None = None,
        ahead: Ahead | None = None,
    ) -> Committed:
        """Begin a step and finish it."""
        committed = self.commit(
            self.begin(step_id), outcome=Outcome(output=output, takes=takes, fragment=fragment), ahead=ahead
        )
        assert committed.result == "ok"
        return committed

    def fail(self, step_id: str, code: str = "broke") -> Committed:
        """Begin a step and fail it for good."""
        return self.commit(self.begin(step_id), outcome=failed(code, step_id))

    def lose_lease(self, *begun: Begun) -> Swept:
        """Let leases run out, and sweep."""
        for one in begun:
            assert self.ledger.redis.zadd(f"{self.shard}:leases", {one.lease: 1.0}, xx=True, ch=True) == 1
        return self.sweep()

    def come_due(self, what: str, step_id: str = "") -> Swept:
        """Let a timer ring: retry, wait, join or deadline."""
        assert (
            self.ledger.redis.zadd(f"{self.shard}:due", {f"{what}|{self.run_id}|{step_id}": 1.0}, xx=True, ch=True) == 1
        )
        return self.sweep()

    def lose_message(self, step_id: str) -> Swept:
        """Let a sent step wait too long, and sweep."""
        assert self.ledger.redis.zadd(f"{self.shard}:ready", {f"{self.run_id}|{step_id}": 1.0}, xx=True, ch=True) == 1
        return self.sweep()

    def sweep(self) -> Swept:
        """Sweep the run's shard."""
        return self.ledger.leases.sweep(shard_of(self.run_id))

    def step(self, step_id: str) -> StepRecord:
        """A step as the ledger has it."""
        return self.ledger.reader.read(self.run_id).steps[step_id]

    def words(self, *step_ids: str) -> str:
        """The states of steps, in a row."""
        steps = self.ledger.reader.read(self.run_id).steps
        return " ".join(steps[step_id].state for step_id in step_ids)

    def output(self, step_id: str) -> JsonValue:
        """A step's output."""
        return self.step(step_id).output

    @property
    def status(self) -> RunStatus:
        """How the run stands."""
        return self.ledger.runs.status(self.run_id)

    def events(self, step_id: str | None = None) -> list[str]:
        """What was told of the run, or of one step."""
        log = cast("list[tuple[str, dict[str, str]]]", self.ledger.redis.xrange(f"{self.shard}:run:{self.run_id}:log"))
        return [event["t"] for _, event in log if step_id is None or event["s"] == step_id]


def failed(code: str = "broke", step_id: str = "") -> Outcome:
    """A failure for good."""
    return Outcome(status="failed", error=ErrorInfo(code=code, message="it broke", step=step_id))


def sent(answer: Committed | Swept | tuple[str, tuple[object, ...]]) -> list[str]:
    """The steps that an answer says to send."""
    if isinstance(answer, Swept):
        return [ready.step_id for _, ready in answer.sends]
    assert isinstance(answer, Committed)
    return [ready.step_id for ready in answer.sends]
