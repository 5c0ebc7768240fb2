"""GrantedClient: a tenant's client with the rights of one token. Its methods block; `GatewayService.call` calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from cantata.client.client import Client
from cantata.client.records import SignalAnswer, outcomes, split_id
from cantata.client.requests import checked_turn
from cantata.client.runs import ChainRun, Run, SignalAction, TurnRun
from cantata.config.loading import chain_named
from cantata.errors import ConfigError
from cantata.flows.submission import Submission
from cantata.flows.turns.mentions import mention_of
from cantata.flows.waits import Answer, Inbox, InboxItem
from cantata.flows.wire import AnswerOutcome, ChainRequest, ProviderBatchRequest, RunStatus, TurnRequest
from cantata.surfaces.gateway.grants import STARTS, Grant, is_question
from cantata.surfaces.http.rejections import RequestRejected
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue


class GrantedClient:
    """The runs of a tenant, or for an operator of all, as one token may use them: each method checks the grant, then calls the client.

    All raise RequestRejected for what the token may not do. The same `key` of a tenant gives the same run.
    """

    def __init__(self, client: Client, grant: Grant) -> None:
        self._client, self._grant = client, grant
        self._runs = client.of(grant.reads)

    def submit_turn(self, turn: TurnRequest, key: str | None) -> TurnRun:
        """Submit a turn. Raises ConfigError."""
        self._grant.check_turn(turn, self._client.definitions)
        submission = Submission(self._grant.labels(), idempotency_key=self._own(key, "turn"))
        run = self._client.submit_checked(checked_turn(turn, self._client.definitions), submission)
        if key is not None and self._runs.request(run.run_id, TurnRequest) != turn:
            raise _key_reused(key)
        return run

    def submit_chain(self, request: ChainRequest, key: str | None) -> ChainRun:
        """Submit a chain request. Raises ConfigError."""
        self._grant.check_chain(request)
        run = self._client.submit_chain(request, idempotency_key=self._own(key, "chain"), labels=self._grant.labels())
        if key is not None:
            stored = run.request
            if (
                stored if request.chain_id else stored.model_copy(update={"chain_id": ""})
            ) != request:  # a missing chain_id was generated
                raise _key_reused(key)
        return run

    def submit_named(
        self,
        kind: Literal["chain", "workflow"],
        name: str,
        given: Mapping[str, JsonValue],
        submission: Submission,
        key: str | None,
    ) -> ChainRun:
        """Submit a chain or a workflow of the configuration by its name. Raises ConfigError, RequestRejected if there is none."""
        self._grant.check_name(kind, name)
        definitions = self._client.definitions
        known: Mapping[str, object] = definitions.chains if kind == "chain" else definitions.workflows
        if name not in known and name not in definitions.refused:
            message = f"the configuration has no {kind} {name!r}{did_you_mean(name, known)}"
            raise RequestRejected(404, message, code=f"unknown_{kind}")
        options: Any = {
            "timeout_s": submission.timeout_s,
            "webhooks": submission.webhooks,
            "labels": self._grant.labels(),
            "idempotency_key": self._own(key, kind),
        }
        if kind == "chain":
            try:
                run = self._client.submit_chain(chain_named(name, definitions), initial_input=given, **options)
            except ConfigError as error:
                faults = [replace(each, where=each.where.replace("initial_input", "input", 1)) for each in error.faults]
                raise ConfigError(faults, source=name, code=error.code) from error
        else:
            run = self._client.submit_workflow(name, given, **options)
        if key is not None:
            stored = run.request
            taken = stored.initial_input if kind == "chain" else stored.nodes[0].input
            if (stored.chain_id, taken, stored.webhooks) != (name, given, submission.webhooks):
                raise _key_reused(key)
        return run

    def cancel(self, run_id: str) -> RunStatus:
        """Cancel a run; return its status then. A token may cancel, retry and fork what it could start."""
        return self._startable_run(run_id).cancel()

    def rerun(
        self, run_id: str, from_step: str | None, changes: Mapping[str, JsonValue], key: str | None
    ) -> TurnRun | ChainRun:
        """Fork a run from a step on, or without a step retry its unfinished part. Raises ConfigError."""
        run = self._startable_run(run_id)
        if isinstance(run, ChainRun):
            self._grant.check_chain(run.request)
        elif run.kind == "turn":
            self._grant.check_turn(self._runs.request(run_id, TurnRequest), self._client.definitions)
        elif run.kind == "batch":
            agent = self._runs.request(run_id, ProviderBatchRequest).agent
            self._grant.check_turn(TurnRequest(text="", agent=agent), self._client.definitions)
        if changes and from_step is not None and not self._grant.approve_own:
            self._check_approvals(run_id, from_step)
        created = self._runs.rerun(
            run_id, from_step, changes=changes, key=self._own(key, "fork"), labels=self._grant.labels()
        )
        if key is not None and not self._runs.was_forked_from(created, run_id, from_step, changes):
            raise _key_reused(key)
        return created

    def signal(self, run_id: str, step: str, value: JsonValue, *, action: SignalAction = "run.signal") -> SignalAnswer:
        """Signal a waiting step. A token may not approve its own run."""
        self._grant.require("signal")
        if reason := self._own_approval(self._runs.find(run_id), step):
            raise RequestRejected(403, reason, code="own_run")
        grant = self._grant
        return self._runs.signal(run_id, step, value, by=grant.name, groups=grant.identities, action=action)

    def inbox(self, *, labels: Mapping[str, str], who: str, after: str | None, limit: int) -> Inbox:
        """Return a page of the tenant's steps that wait for a person; each with the reason why the token may not answer it."""
        page = self._runs.inbox(labels=labels, who=who, after=after, limit=limit)
        return page.model_copy(update={"items": [_with_refusal(self._grant, item) for item in page.items]})

    def inbox_item(self, item_id: str) -> InboxItem:
        """Return a step that waits for a person, likewise."""
        return _with_refusal(self._grant, self._runs.inbox_item(item_id))

    def answer(self, answers: Sequence[Answer]) -> list[AnswerOutcome]:
        """Answer steps that wait for a person; return the outcome of each."""
        return outcomes(answers, self._answer)

    def _answer(self, answer: Answer) -> SignalAnswer:
        run_id, step = split_id(answer.id)
        try:
            return self.signal(run_id, step, answer.value, action="inbox.answer")
        except RequestRejected as refused:
            self._runs.record_refusal("inbox.answer", str(refused), run_id=run_id, target=step)
            raise

    def refusals(self, run_id: str, step: str | None) -> dict[str, str]:
        """Return the reasons why a token may not cancel, retry, fork or signal a run; for a signal, of this step."""
        run = self._runs.find(run_id)
        starts = self._grant.lacks(STARTS[run.kind])
        item = self._runs.waiting_step(run_id, step) if step is not None else None
        signal = (
            self._grant.refusal_of(item)
            if item
            else self._grant.lacks("signal") or (self._own_approval(run, step) if step else "")
        )
        return {"cancel": starts, "retry": starts, "fork": starts, "signal": signal}

    def _own(self, key: str | None, kind: str) -> str | None:
        """Return a key of a request as one of its tenant's, for requests of this kind."""
        return key and f"gateway\n{self._grant.tenant}\n{kind}\n{key}"

    def _startable_run(self, run_id: str) -> TurnRun | ChainRun:
        """Return a run that the token could have started. Raises UnknownRunError, RequestRejected."""
        run = self._runs.find(run_id)
        self._grant.require(STARTS[run.kind])
        return run

    def _check_approvals(self, run_id: str, from_step: str) -> None:
        """Raise RequestRejected if a fork with another input would reuse an approval of the previous input."""
        for step_id, spec in self._runs.kept_waits(run_id, from_step):
            if not is_question(spec.kind, spec.work):
                message = (
                    f"step {step_id!r} was approved for the previous input, which this fork would change; "
                    "fork from that step or an earlier one, so that it is approved again"
                )
                raise RequestRejected(403, message, code="own_run")

    def _own_approval(self, run: Run, step: str) -> str:
        labels = self._runs.labels(run.run_id)
        known = run.steps([step]).get(step)
        return self._grant.own_approval(labels, known.spec if known else None)


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
