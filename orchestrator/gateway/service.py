"""What the gateway does for a tenant, as coroutines: calls of the client in a bounded pool of threads, and waiting without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar, cast

from orchestrator import forking
from orchestrator.client import ChainRun, Client, Run, TurnRun
from orchestrator.coordinator import definitions_from
from orchestrator.errors import ConfigError, UnknownRunError
from orchestrator.forking import FORKED_AT
from orchestrator.gateway.faults import Refused
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RUN_OVER, ChainRequest, ChainResponse, RunResult, RunStatus, Turn
from orchestrator.pages.runs import Pages
from orchestrator.planning.mentions import mention
from orchestrator.results import chain_response, turn_result
from orchestrator.state import fleet, forks
from orchestrator.state.load import USUAL_QUEUES
from orchestrator.state.memory import MemoryBank
from orchestrator.state.records import StepRecord
from orchestrator.state.sessions import Sessions
from orchestrator.state.streams import Streams

THREADS = 32  # calls of Redis at once; each takes about a millisecond, so that is thousands a second
READY_S = 2.0  # until it is said that Redis hangs: probes, and `submit status`, which waits for 3 s, are to hear why
MOST_WAITING = 2000  # calls that wait for a thread, before more are refused: Redis is away, or far too slow

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """The way to runs, sessions and memory, of whoever asks. Every method takes the tenant, and shows nobody what is another's."""

    def __init__(self, client: Client, streams: Streams, *, prefix: str = "") -> None:
        self.client = client
        self.streams = streams
        self.prefix = prefix  # stands before the addresses that answers name
        self.pages = Pages(client)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway")
        self._waiting = 0

    async def call(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call what blocks, in a thread."""
        if self._waiting >= MOST_WAITING:
            raise Refused(503, "this gateway has too much to do; come again", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **more))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- runs -----------------------------------------------------------------------------------------------------------

    async def submit_turn(self, tenant: str, turn: Turn, key: str | None = None) -> TurnRun:
        """Submit a turn of a tenant. The same key gives the same run. Raises ConfigError."""
        return await self.call(self._submit_turn, tenant, turn, key)

    async def submit_chain(self, tenant: str, request: ChainRequest, key: str | None = None) -> ChainRun:
        """Submit a chain request of a tenant. The same key gives the same run. Raises ConfigError."""
        return await self.call(self._submit_chain, tenant, request, key)

    async def run(self, tenant: str, run_id: str) -> TurnRun | ChainRun:
        """A run of a tenant. Raises UnknownRunError, also for the runs of others."""
        return await self.call(self._run, tenant, run_id)

    async def turn_of(self, tenant: str, run_id: str) -> tuple[TurnRun, Turn]:
        """A turn of a tenant, and what was asked. Raises UnknownRunError, also for a chain."""
        return await self.call(self._turn_of, tenant, run_id)

    async def result(self, run: Run) -> RunResult | ChainResponse:
        """How a run ended, or how far it is."""
        return await self.call(_result, run)

    async def is_over(self, run: Run, wait_s: float) -> bool:
        """Whether a run is over, once it is or `wait_s` have passed."""
        if await self.call(run.status) in RUN_OVER:
            return True
        return bool(wait_s) and await self.streams.wait_closed(run.run_id, wait_s)

    async def cancel(self, tenant: str, run_id: str) -> RunStatus:
        """End a run of a tenant; its status after that."""
        return await self.call(lambda: self._run(tenant, run_id).cancel())

    async def retry(self, tenant: str, run_id: str, key: str | None = None) -> TurnRun | ChainRun:
        """Do anew what a run of a tenant left unfinished. The same key gives the same run. Raises ConfigError."""
        return await self.call(self._made_of, tenant, run_id, None, {}, key)

    async def fork(
        self, tenant: str, run_id: str, from_step: str, changes: Mapping[str, JsonValue], key: str | None = None
    ) -> TurnRun | ChainRun:
        """Do a run of a tenant anew from a step on. The same key gives the same run. Raises ConfigError."""
        return await self.call(self._made_of, tenant, run_id, from_step, changes, key)

    async def signal(self, tenant: str, run_id: str, step: str, value: JsonValue) -> str:
        """Give a waiting step of a tenant's run its value; what became of it."""
        return await self.call(lambda: self._run(tenant, run_id).signal(step, value))

    async def steps(self, run: Run, step_ids: list[str]) -> Mapping[str, StepRecord]:
        """What is known of some steps."""
        return await self.call(run.steps, step_ids) if step_ids else {}

    # --- the rest -------------------------------------------------------------------------------------------------------

    def sessions(self, tenant: str) -> Sessions:
        """The conversations of a tenant."""
        return self.client.sessions.of(tenant)

    def memory(self, tenant: str) -> MemoryBank:
        """What is remembered of a tenant."""
        return self.client.memory.of(tenant=tenant)

    async def faults(self) -> list[str]:
        """Why runs would not be worked on now; nothing if they would. Told in time, though Redis may hang."""
        try:
            return await asyncio.wait_for(self.call(self._faults), READY_S)
        except TimeoutError:
            return [f"Redis gave no answer within {READY_S:g} s"]

    def _submit_turn(self, tenant: str, turn: Turn, key: str | None) -> TurnRun:
        run = self.client.submit_turn(
            turn.text, team=turn.team, agent=turn.agent, workflow=turn.workflow, session=turn.session, send_history=turn.send_history,
            timeout_s=turn.timeout_s, idempotency_key=key and f"gateway\n{tenant}\nturn\n{key}", labels=_labels(tenant),
        )  # fmt: skip
        if key is not None and self._asked(run, Turn) != turn:
            raise _used(key)
        return run

    def _submit_chain(self, tenant: str, request: ChainRequest, key: str | None) -> ChainRun:
        run = self.client.submit_chain(request, idempotency_key=key and f"gateway\n{tenant}\nchain\n{key}", labels=_labels(tenant))
        if key is not None:
            asked = self._asked(run, ChainRequest)
            named = asked if request.chain_id else asked.model_copy(update={"chain_id": ""})  # one was made up
            if named != request:
                raise _used(key)
        return run

    def _made_of(
        self, tenant: str, run_id: str, from_step: str | None, changes: Mapping[str, JsonValue], key: str | None
    ) -> TurnRun | ChainRun:
        self._run(tenant, run_id)
        own = key and f"gateway\n{tenant}\nfork\n{key}"
        if from_step is None:
            made = self.client.retry(run_id, idempotency_key=own)
        else:
            made = self.client.fork(run_id, from_step, changes=changes, idempotency_key=own)
        if key is not None and not self._is_made_so(made, run_id, from_step, changes):
            raise _used(key)
        return made

    def _is_made_so(self, made: Run, source: str, from_step: str | None, changes: Mapping[str, JsonValue]) -> bool:
        """Whether a run was made of another as is asked now, and not by an earlier request with the same key."""
        ledger = self.client.ledger
        _, request, _, labels = ledger.request_of(made.run_id)
        if labels.get(FORKED_AT) != from_step:
            return False
        past = forks.read(ledger, source)
        wanted, _ = forking.request_of(past, changes, definitions_from(ledger.definitions(source, past.definitions)))
        return cast(JsonValue, json.loads(request)) == wanted

    def _asked(self, run: Run, kind: type[TurnOrChain]) -> TurnOrChain:
        return kind.model_validate_json(self.client.ledger.request_of(run.run_id)[1])

    def _run(self, tenant: str, run_id: str) -> TurnRun | ChainRun:
        kind, _, _, labels = self.client.ledger.request_of(run_id)
        if labels.get("tenant", "") != tenant:
            raise UnknownRunError(f"no run {run_id!r} is known here; it may have expired: `submit runs list` shows those kept")
        return ChainRun(self.client, run_id) if kind == "chain" else TurnRun(self.client, run_id)

    def _turn_of(self, tenant: str, run_id: str) -> tuple[TurnRun, Turn]:
        run = self._run(tenant, run_id)
        if not isinstance(run, TurnRun):
            raise UnknownRunError(f"run {run_id!r} is a chain, not a turn")
        return run, self._asked(run, Turn)

    def _faults(self) -> list[str]:
        redis = self.client.redis
        redis.ping()
        served = {queue for worker in fleet.workers(redis) for queue in worker.queues}
        return [fleet.unserved(queue) for queue in USUAL_QUEUES if queue not in served]


TurnOrChain = TypeVar("TurnOrChain", Turn, ChainRequest)


def addressed(turn: Turn) -> Turn:
    """The turn, for the agent that its text names: `@agent: text`, `@history @agent: text`."""
    named = mention(turn.text)
    if named is None or turn.agent or turn.team:
        return turn
    return turn.model_copy(update={"text": named.text, "agent": named.agent, "send_history": named.send_history})


def _result(run: Run) -> RunResult | ChainResponse:
    if isinstance(run, TurnRun):
        return run.result(1.0) if run.status() in RUN_OVER else turn_result(run.record())
    return chain_response(run.record())


def _labels(tenant: str) -> dict[str, str]:
    return {"tenant": tenant} if tenant else {}


def _used(key: str) -> ConfigError:
    return ConfigError(f"the key {key!r} was used for another request; a new request needs a new key", code="key_used")
