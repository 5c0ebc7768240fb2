"""Operations of the gateway for a tenant: `TenantClient` with the rights of tokens. They block; `TenantService.call` calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cantata.client.client import Client
from cantata.client.graphs.run_pages import RunPages
from cantata.client.records import SignalAnswer, outcomes, split_id
from cantata.client.runs import ChainRun, Run, TurnRun
from cantata.client.streams import EventStreams
from cantata.client.tenant_client import TenantClient
from cantata.errors import ConfigError
from cantata.flows.turns.mentions import mention_of
from cantata.flows.waits import Answer, Inbox, InboxItem
from cantata.flows.wire import RUN_OVER, AnswerOutcome, ChainRequest, ProviderBatchRequest, RunStatus, TurnRequest
from cantata.surfaces.gateway.grants import STARTS, Grant, is_question
from cantata.surfaces.gateway.readiness import Readiness
from cantata.surfaces.http.blocking_calls import BlockingCalls
from cantata.surfaces.http.rejections import RequestRejected
from cantata.values import JsonValue

THREADS = 32  # calls of Redis at once; each takes about a millisecond, so that is thousands a second
MAX_WAITING = 2000  # calls that wait for a thread, before more are rejected: Redis is away, or far too slow
MAX_OF_TENANT = 500  # of one tenant among them: two and a half seconds' worth of its usual request rate


class TenantService:
    """Runs, sessions and memory of tenants. Every method takes the tenant or a grant, and gives access to no other tenant's data.

    Those that take a grant raise RequestRejected if the token may not do it. The same `key` of a tenant gives the same run.
    """

    def __init__(self, client: Client, streams: EventStreams, *, prefix: str = "") -> None:
        self.client, self.streams = client, streams
        self.prefix = prefix  # of the URLs in responses
        self.pages = RunPages(client.engine)
        self.call = BlockingCalls("the gateway", threads=THREADS, max_waiting=MAX_WAITING, max_of_one=MAX_OF_TENANT)
        self.readiness = Readiness(client, self.call)

    def runs(self, tenant: str) -> TenantClient:
        """Return the runs, sessions and memory of a tenant."""
        return self.client.of(tenant)

    async def is_over(self, run: Run, wait_s: float) -> bool:
        """Return whether a run is closed, as soon as it is, or after `wait_s`. Waiting needs no thread."""
        return await self.call.when_free(run.status) in RUN_OVER or (
            bool(wait_s) and await self.streams.runs.wait_closed(run.run_id, wait_s)
        )

    def submit_turn(self, grant: Grant, turn: TurnRequest, key: str | None) -> TurnRun:
        """Submit a turn. Raises ConfigError."""
        grant.check_turn(turn, self.client.definitions)
        run = self.client.submit_turn(
            **turn.model_dump(), idempotency_key=key and f"gateway\n{grant.tenant}\nturn\n{key}", labels=grant.labels()
        )
        if key is not None and self.runs(grant.tenant).request(run.run_id, TurnRequest) != turn:
            raise _key_reused(key)
        return run

    def submit_chain(self, grant: Grant, request: ChainRequest, key: str | None) -> ChainRun:
        """Submit a chain request. Raises ConfigError."""
        grant.check_chain(request)
        own = key and f"gateway\n{grant.tenant}\nchain\n{key}"
        run = self.client.submit_chain(request, idempotency_key=own, labels=grant.labels())
        if key is not None:
            stored = run.request
            if (stored if request.chain_id else stored.model_copy(update={"chain_id": ""})) != request:  # a missing chain_id was generated
                raise _key_reused(key)
        return run

    def cancel(self, grant: Grant, run_id: str) -> RunStatus:
        """Cancel a run; return its status then. A token may cancel, retry and fork what it could start."""
        return self._startable_run(grant, run_id).cancel()

    def rerun(
        self, grant: Grant, run_id: str, from_step: str | None, changes: Mapping[str, JsonValue], key: str | None
    ) -> TurnRun | ChainRun:
        """Fork a run from a step on, or without a step retry its unfinished part. Raises ConfigError."""
        run = self._startable_run(grant, run_id)
        if isinstance(run, ChainRun):
            grant.check_chain(run.request)
        elif run.kind == "turn":
            grant.check_turn(self.runs(grant.tenant).request(run_id, TurnRequest), self.client.definitions)
        elif run.kind == "batch":
            agent = self.runs(grant.tenant).request(run_id, ProviderBatchRequest).agent
            grant.check_turn(TurnRequest(text="", agent=agent), self.client.definitions)
        if changes and from_step is not None and not grant.approve_own:
            self._check_approvals(grant, run_id, from_step)
        own = key and f"gateway\n{grant.tenant}\nfork\n{key}"
        created = self.runs(grant.tenant).rerun(run_id, from_step, changes=changes, key=own, labels=grant.labels())
        if key is not None and not self.runs(grant.tenant).was_forked_from(created, run_id, from_step, changes):
            raise _key_reused(key)
        return created

    def signal(self, grant: Grant, run_id: str, step: str, value: JsonValue) -> SignalAnswer:
        """Signal a waiting step. A token may not approve its own run."""
        if reason := self._own_approval(grant, self.runs(grant.tenant).find(run_id), step):
            raise RequestRejected(403, reason, code="own_run")
        return self.runs(grant.tenant).signal(run_id, step, value, by=grant.name, groups=grant.identities)

    def inbox(self, grant: Grant, *, labels: Mapping[str, str], who: str, after: str | None, limit: int) -> Inbox:
        """Return a page of the tenant's steps that wait for a person; each with the reason why the token may not answer it."""
        page = self.runs(grant.tenant).inbox(labels=labels, who=who, after=after, limit=limit)
        return page.model_copy(update={"items": [_with_refusal(grant, item) for item in page.items]})

    def inbox_item(self, grant: Grant, item_id: str) -> InboxItem:
        """Return a step that waits for a person, likewise."""
        return _with_refusal(grant, self.runs(grant.tenant).inbox_item(item_id))

    def answer(self, grant: Grant, answers: Sequence[Answer]) -> list[AnswerOutcome]:
        """Answer steps that wait for a person; return the outcome of each."""
        return outcomes(answers, lambda answer: self.signal(grant, *split_id(answer.id), answer.value))

    def refusals(self, grant: Grant, run_id: str, step: str | None) -> dict[str, str]:
        """Return the reasons why a token may not cancel, retry, fork or signal a run; for a signal, of this step."""
        run = self.runs(grant.tenant).find(run_id)
        starts = grant.lacks(STARTS[run.kind])
        item = self.runs(grant.tenant).waiting_step(run_id, step) if step is not None else None
        signal = grant.refusal_of(item) if item else grant.lacks("signal") or (self._own_approval(grant, run, step) if step else "")
        return {"cancel": starts, "retry": starts, "fork": starts, "signal": signal}

    def _startable_run(self, grant: Grant, run_id: str) -> TurnRun | ChainRun:
        """Return a run that the token could have started. Raises UnknownRunError, RequestRejected."""
        run = self.runs(grant.tenant).find(run_id)
        grant.require(STARTS[run.kind])
        return run

    def _check_approvals(self, grant: Grant, run_id: str, from_step: str) -> None:
        """Raise RequestRejected if a fork with another input would reuse an approval of the previous input."""
        for step_id, spec in self.runs(grant.tenant).kept_waits(run_id, from_step):
            if not is_question(spec.kind, spec.work):
                message = (
                    f"step {step_id!r} was approved for the previous input, which this fork would change; "
                    "fork from that step or an earlier one, so that it is approved again"
                )
                raise RequestRejected(403, message, code="own_run")

    def _own_approval(self, grant: Grant, run: Run, step: str) -> str:
        labels = self.runs(grant.tenant).labels(run.run_id)
        known = run.steps([step]).get(step)
        return grant.own_approval(labels, known.spec if known else None)


def apply_mention(turn: TurnRequest) -> TurnRequest:
    """Return the turn, for the agent that its text mentions: `@agent: text`, `@history @agent: text`."""
    named = mention_of(turn.text)
    if named is None or turn.agent or turn.team:
        return turn
    return turn.model_copy(update={"text": named.text, "agent": named.agent, "send_history": named.send_history})


def _with_refusal(grant: Grant, item: InboxItem) -> InboxItem:
    return item.model_copy(update={"refused": grant.refusal_of(item)})


def _key_reused(key: str) -> ConfigError:
    return ConfigError(f"the key {key!r} was used for another request; use a new key", code="key_used")
