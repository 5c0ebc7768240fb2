"""Operations of the gateway for a tenant, as coroutines: client calls run in a bounded thread pool, waiting needs no thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar, cast

from cantata.client.client import Client
from cantata.client.runs import ChainRun, Run, TurnRun
from cantata.coordinator import fork_requests
from cantata.coordinator.fork_requests import FORKED_AT
from cantata.coordinator.start import definitions_from
from cantata.dashboard.pages.run_pages import RunPages
from cantata.errors import ConfigError, UnknownRunError
from cantata.gateway.grants import STARTS, Grant, is_question
from cantata.gateway.http_errors import RequestRejected
from cantata.gateway.readiness import Readiness
from cantata.models.forks import EndedRun
from cantata.models.values import JsonValue
from cantata.models.wire import RUN_OVER, ChainRequest, ChainResponse, RunResult, RunStatus, TurnRequest
from cantata.planning import rewind as rewinding
from cantata.planning.turns.mentions import mention_of
from cantata.state.forks import fork_store
from cantata.state.memory.memory_store import MemoryStore
from cantata.state.runs.streams import Streams
from cantata.state.sessions.conversations import Sessions

THREADS = 32  # calls of Redis at once; each takes about a millisecond, so that is thousands a second
MAX_WAITING = 2000  # calls that wait for a thread, before more are rejected: Redis is away, or far too slow

P = ParamSpec("P")
T = TypeVar("T")


class TenantService:
    """Runs, sessions and memory of tenants. Every method takes the tenant or a grant, and gives access to no other tenant's data."""

    def __init__(self, client: Client, streams: Streams, *, prefix: str = "") -> None:
        self.client = client
        self.streams = streams
        self.prefix = prefix  # of the URLs in responses
        self.pages = RunPages(client)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway")
        self._waiting = 0
        self.readiness = Readiness(client, self.call)

    async def call(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Call a blocking function in a thread. Raises RequestRejected if too many calls wait."""
        if self._waiting >= MAX_WAITING:
            raise RequestRejected(503, "the gateway is overloaded; retry in 1 s", code="busy", retry_after_s=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **more))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- runs -----------------------------------------------------------------------------------------------------------

    async def submit_turn(self, grant: Grant, turn: TurnRequest, key: str | None = None) -> TurnRun:
        """Submit a turn. The same key of a tenant gives the same run. Raises ConfigError; RequestRejected if the token may not."""
        return await self.call(self._submit_turn, grant, turn, key)

    async def submit_chain(self, grant: Grant, request: ChainRequest, key: str | None = None) -> ChainRun:
        """Submit a chain request. The same key of a tenant gives the same run. Raises ConfigError; RequestRejected if the token may not."""
        return await self.call(self._submit_chain, grant, request, key)

    async def run(self, tenant: str, run_id: str) -> TurnRun | ChainRun:
        """Return a run of a tenant. Raises UnknownRunError, also for runs of other tenants."""
        return await self.call(self._run, tenant, run_id)

    async def turn_of(self, tenant: str, run_id: str) -> tuple[TurnRun, TurnRequest]:
        """Return a turn of a tenant, and its request. Raises UnknownRunError, also for a chain."""
        return await self.call(self._turn_of, tenant, run_id)

    async def result(self, run: TurnRun | ChainRun) -> RunResult | ChainResponse:
        """Return the result of a run, or its progress."""
        return await self.call(_result, run)

    async def is_over(self, run: Run, wait_s: float) -> bool:
        """Return whether a run is closed, as soon as it is, or after `wait_s`."""
        if await self.call(run.status) in RUN_OVER:
            return True
        return bool(wait_s) and await self.streams.wait_closed(run.run_id, wait_s)

    async def cancel(self, grant: Grant, run_id: str) -> RunStatus:
        """Cancel a run; return its status then. Raises RequestRejected for a token that could not start it."""
        return await self.call(lambda: self._startable_run(grant, run_id).cancel())

    async def retry(self, grant: Grant, run_id: str, key: str | None = None) -> TurnRun | ChainRun:
        """Retry the unfinished part of a run. The same key gives the same run. Raises ConfigError, or RequestRejected as `cancel` does."""
        return await self.call(self._rerun, grant, run_id, None, {}, key)

    async def fork(
        self, grant: Grant, run_id: str, from_step: str, changes: Mapping[str, JsonValue], key: str | None = None
    ) -> TurnRun | ChainRun:
        """Fork a run from a step on. The same key gives the same run. Raises ConfigError, or RequestRejected as `cancel` does."""
        return await self.call(self._rerun, grant, run_id, from_step, changes, key)

    async def signal(self, grant: Grant, run_id: str, step: str, value: JsonValue) -> str:
        """Signal a waiting step; return the outcome. Raises RequestRejected for an approval of the token's own run."""
        return await self.call(self._signal, grant, run_id, step, value)

    async def refusals(self, grant: Grant, run_id: str, step: str | None) -> dict[str, str]:
        """Return the reasons why a token may not cancel, retry, fork or signal a run; for a signal, of this step."""
        return await self.call(self._refusals, grant, run_id, step)

    # --- the rest -------------------------------------------------------------------------------------------------------

    def sessions(self, tenant: str) -> Sessions:
        """Return the sessions of a tenant."""
        return self.client.sessions.of(tenant)

    def memory(self, tenant: str) -> MemoryStore:
        """Return the memory of a tenant."""
        return self.client.memory.of(tenant=tenant)

    def _submit_turn(self, grant: Grant, turn: TurnRequest, key: str | None) -> TurnRun:
        grant.check_turn(turn, self.client.definitions)
        run = self.client.submit_turn(
            turn.text, team=turn.team, agent=turn.agent, workflow=turn.workflow, session=turn.session, send_history=turn.send_history,
            timeout_s=turn.timeout_s, idempotency_key=key and f"gateway\n{grant.tenant}\nturn\n{key}", labels=grant.labels(),
        )  # fmt: skip
        if key is not None and self._request_of(run, TurnRequest) != turn:
            raise _key_reused(key)
        return run

    def _submit_chain(self, grant: Grant, request: ChainRequest, key: str | None) -> ChainRun:
        grant.check_chain(request)
        own = key and f"gateway\n{grant.tenant}\nchain\n{key}"
        run = self.client.submit_chain(request, idempotency_key=own, labels=grant.labels())
        if key is not None:
            stored = self._request_of(run, ChainRequest)
            if (stored if request.chain_id else stored.model_copy(update={"chain_id": ""})) != request:  # a missing chain_id was generated
                raise _key_reused(key)
        return run

    def _rerun(
        self, grant: Grant, run_id: str, from_step: str | None, changes: Mapping[str, JsonValue], key: str | None
    ) -> TurnRun | ChainRun:
        run = self._startable_run(grant, run_id)
        if isinstance(run, TurnRun):
            grant.check_turn(self._request_of(run, TurnRequest), self.client.definitions)
        else:
            grant.check_chain(self._request_of(run, ChainRequest))
        own, labels = key and f"gateway\n{grant.tenant}\nfork\n{key}", grant.labels()
        if from_step is None:
            created = self.client.retry(run_id, idempotency_key=own, labels=labels)
        else:
            if changes and not grant.approve_own:
                _check_approvals(fork_store.read(self.client.ledger, run_id), from_step)
            created = self.client.fork(run_id, from_step, changes=changes, idempotency_key=own, labels=labels)
        if key is not None and not self._was_made_from(created, run_id, from_step, changes):
            raise _key_reused(key)
        return created

    def _was_made_from(self, created: Run, source: str, from_step: str | None, changes: Mapping[str, JsonValue]) -> bool:
        """Return whether a run was created from its source as requested now, and not by another request with the same key."""
        ledger = self.client.ledger
        _, request, _, labels = ledger.runs.request_of(created.run_id)
        if labels.get(FORKED_AT) != from_step:
            return False
        past = fork_store.read(ledger, source)
        wanted, _ = fork_requests.request_of(past, changes, definitions_from(ledger.runs.definitions(source, past.definitions)))
        return cast(JsonValue, json.loads(request)) == wanted

    def _request_of(self, run: Run, kind: type[TurnOrChain]) -> TurnOrChain:
        return kind.model_validate_json(self.client.ledger.runs.request_of(run.run_id)[1])

    def _run(self, tenant: str, run_id: str) -> TurnRun | ChainRun:
        kind, _, _, labels = self.client.ledger.runs.request_of(run_id)
        if labels.get("tenant", "") != tenant:
            raise UnknownRunError.of(run_id)
        return ChainRun(self.client, run_id) if kind == "chain" else TurnRun(self.client, run_id)

    def _startable_run(self, grant: Grant, run_id: str) -> TurnRun | ChainRun:
        """Return a run that the token could have started, and so may cancel. Raises UnknownRunError, RequestRejected."""
        run = self._run(grant.tenant, run_id)
        grant.require(STARTS[kind_of(run)])
        return run

    def _signal(self, grant: Grant, run_id: str, step: str, value: JsonValue) -> str:
        run = self._run(grant.tenant, run_id)
        if reason := self._own_approval(grant, run, step):
            raise RequestRejected(403, reason, code="own_run")
        return run.signal(step, value)

    def _own_approval(self, grant: Grant, run: Run, step: str) -> str:
        labels = self.client.ledger.runs.request_of(run.run_id)[3]
        known = run.steps([step]).get(step)
        return grant.own_approval(labels, known.spec if known else None)

    def _refusals(self, grant: Grant, run_id: str, step: str | None) -> dict[str, str]:
        run = self._run(grant.tenant, run_id)
        starts = grant.lacks(STARTS[kind_of(run)])
        signal = grant.lacks("signal") or (self._own_approval(grant, run, step) if step is not None else "")
        return {"cancel": starts, "retry": starts, "fork": starts, "signal": signal}

    def _turn_of(self, tenant: str, run_id: str) -> tuple[TurnRun, TurnRequest]:
        run = self._run(tenant, run_id)
        if not isinstance(run, TurnRun):
            raise UnknownRunError(f"run {run_id!r} is a chain, not a turn")
        return run, self._request_of(run, TurnRequest)


TurnOrChain = TypeVar("TurnOrChain", TurnRequest, ChainRequest)


def apply_mention(turn: TurnRequest) -> TurnRequest:
    """Return the turn, for the agent that its text mentions: `@agent: text`, `@history @agent: text`."""
    named = mention_of(turn.text)
    if named is None or turn.agent or turn.team:
        return turn
    return turn.model_copy(update={"text": named.text, "agent": named.agent, "send_history": named.send_history})


def _result(run: TurnRun | ChainRun) -> RunResult | ChainResponse:
    if isinstance(run, TurnRun):
        return run.result(1.0) if run.status() in RUN_OVER else run.so_far()
    return run.so_far()


def kind_of(run: Run) -> str:
    """Return the kind of a run: chain or turn."""
    return "chain" if isinstance(run, ChainRun) else "turn"


def _check_approvals(source: EndedRun, from_step: str) -> None:
    """Raise RequestRejected if a fork with another input would reuse an approval of the previous input."""
    fork = rewinding.fork(source, from_step)
    restarted = {each.step_id for each in fork.restarted}.union(fork.removed)
    for step_id, spec in source.specs.items():
        is_approval = spec.kind == "wait" and not is_question(spec.kind, spec.work)
        if is_approval and source.steps[step_id].state == "done" and step_id not in restarted:
            message = (
                f"step {step_id!r} was approved for the previous input, which this fork would change; "
                "fork from that step or an earlier one, so that it is approved again"
            )
            raise RequestRejected(403, message, code="own_run")


def _key_reused(key: str) -> ConfigError:
    return ConfigError(f"the key {key!r} was used for another request; use a new key", code="key_used")
