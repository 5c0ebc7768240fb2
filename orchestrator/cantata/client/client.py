"""Client: submit turns and chains, find and fork runs."""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, overload

from cantata import __version__, bounds
from cantata.client.fleet import Fleet
from cantata.client.memory_bank import MAX_OUTAGE_S
from cantata.client.runs import ChainRun, TurnRun, WebhookRun
from cantata.client.tenant_client import TenantClient
from cantata.config.faults import checked
from cantata.engine import publisher
from cantata.engine.engine import Engine
from cantata.engine.publisher import TASKS, NoPublisher, Publisher
from cantata.engine.requests import CheckedChain, CheckedTurn, checked_turn, workflow_request
from cantata.engine.start import choose_start_queue
from cantata.errors import ConfigError
from cantata.features.audit.audit_store import AuditEntry, AuditFilter, AuditStore
from cantata.features.batches.batch_feed import BatchFeed
from cantata.features.batches.batch_store import BatchMode
from cantata.features.batches.batches import Batches, batch_target
from cantata.features.batches.rows import BAD_VALUE, BatchRow, Row, RowRequests
from cantata.features.forks.forking import fork
from cantata.features.inbox import inbox
from cantata.features.inbox.answers import SignalAnswer, split_id
from cantata.features.inbox.inbox import InboxFilter
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.schedules.schedules import Schedules
from cantata.features.sessions.sessions import Sessions
from cantata.features.webhooks.webhooks import post_test
from cantata.flows.definitions import Definitions
from cantata.flows.submission import Submission
from cantata.flows.waits import InboxItem
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.flows.workflows.conversion import plain_input
from cantata.flows.workflows.decorator import reference_of
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import MAX_TENANTS
from cantata.ledger.records import RunRecord
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import Redis, check, connect
from cantata.operation import embedded
from cantata.operation.extras import NO_BROKER, OLDEST_CELERY, check_extras
from cantata.settings import settings
from cantata.values import JsonValue

if TYPE_CHECKING:
    from celery import Celery

    from cantata.engine.dispatch.celery_app import App


class Client:
    """Submits turns and chains, and finds runs.

    Args:
        redis_url: REDIS_URL if None, else the stack that `submit up` keeps in this folder.
        broker_url: CANTATA_BROKER_URL if None, else `redis_url`. With "none", or where Celery is not installed, this process sends no
            message: a run is in Redis when it is accepted, and the coordinator's next sweep sends its first step.
        config: A configuration file or definitions; if None, the configuration is searched for as the command line does.
        namespace: CANTATA_NAMESPACE if None.
        app: The user's Celery application, the one that CANTATA_APP names if None. If there is one, its broker is used and its Redis,
            unless others are configured.

    Raises:
        UnavailableError: No Redis is configured, or it cannot be reached.
        ConfigError: The configuration has faults.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        config: str | Path | Definitions | None = None,
        namespace: str | None = None,
        app: Celery | None = None,
    ) -> None:
        environment = settings()
        broker_url = broker_url or environment.broker_url
        sends = publisher.sends(broker_url)
        application = _user_app(app) if app is not None or environment.app else None
        of_app = _redis_url_of(application) if application else None
        self.redis_url = redis_url or environment.redis_url or of_app or embedded.stack_url()
        redis = connect(self.redis_url, namespace=namespace)
        self.warnings = check(redis, url=self.redis_url)
        clock.synchronize(redis)
        ledger = Ledger(redis, patience_s=MAX_OUTAGE_S, replicas=environment.wait_replicas, sends=sends)
        celery = _publisher(self.redis_url, broker_url, namespace, application) if sends else NoPublisher()
        self.engine = Engine(ledger, celery, config)

    @classmethod
    def embedded(
        cls, home: str | Path | None = None, *, config: str | Path | Definitions | None = None, **options: Any
    ) -> EmbeddedClient:
        """Return a client with a stack of its own, started now and stopped when the `with` block ends."""
        return EmbeddedClient(home, config=config, **options)

    def with_definitions(self, definitions: Definitions) -> Client:
        """Return a client with other definitions. Both share their connections, and the `close` of either ends them."""
        other = copy.copy(self)
        other.engine = self.engine.with_definitions(definitions)
        return other

    @property
    def ledger(self) -> Ledger:
        """The ledger of runs."""
        return self.engine.ledger

    @property
    def redis(self) -> Redis:
        """The connections to Redis."""
        return self.engine.ledger.redis

    @property
    def app(self) -> App:
        """Celery, which carries the messages. Raises ConfigError for a client without a broker."""
        if isinstance(self.engine.publisher, NoPublisher):
            oldest = ".".join(map(str, OLDEST_CELERY))
            raise ConfigError(
                f"this client has no broker: CANTATA_BROKER_URL is {NO_BROKER!r}, or Celery {oldest} or newer is not installed"
            )
        return cast("App", self.engine.publisher)

    @property
    def definitions(self) -> Definitions:
        """The definitions that runs may name. Other clients share them: change a copy, for `with_definitions`."""
        return self.engine.definitions

    def find_config(self) -> Path | None:
        """Return the configuration that counts now; None if it is the built-in one, or was given as definitions. Raises ConfigError."""
        return self.engine.find_config()

    def read_definitions(self) -> Definitions:
        """Read the configuration as it is now; `definitions` reads it once. Raises ConfigError."""
        return self.engine.read_definitions()

    def of(self, tenant: str | None) -> TenantClient:
        """Return what belongs to a tenant: runs, inbox, sessions, memory, schedules, batches.

        "" stands for what belongs to none; None likewise, but with the runs and the inbox of all tenants.
        """
        return TenantClient(self.engine, tenant)

    def tenants(self) -> tuple[list[str], bool]:
        """Return the tenants that keep runs, sessions, schedules or batches, sorted, and whether these are all: at most 1,000."""
        return self.ledger.quotas.tenants(MAX_TENANTS)

    def submit_turn(
        self,
        text: str,
        *,
        team: str | None = None,
        agent: str | None = None,
        workflow: str | None = None,
        session: str | None = None,
        send_history: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> TurnRun:
        """Submit a user turn, and return the handle of its run. It answers with the configuration's default team or agent if none is named.

        Args:
            text: The user's message.
            team, agent, workflow: The receiver, by its name in the configuration; at most one.
            session: The conversation. Its turns run in the order of their submission, and its messages are kept. It belongs to the tenant
                in the label `tenant`.
            send_history: Whether the conversation so far is put before the text.
            timeout_s: The time limit of the run, in seconds; that of the configuration if None.
            idempotency_key: The same key, in the same session, gives the same run.
            labels: Labels of the run; `tenant` names its tenant.
            webhooks: Names of the configuration or URLs, such as `ops` or `wait,failure=https://example.org/hook`; without events, `end`.

        Raises:
            ConfigError: There is no such receiver, the session is full, or the tenant's quota is used up. Nothing was run.
            UnavailableError: Redis cannot be reached.
        """
        turn = checked(
            TurnRequest,
            {
                "text": text,
                "team": team,
                "agent": agent,
                "workflow": workflow,
                "session": session,
                "send_history": send_history,
                "timeout_s": timeout_s,
                "webhooks": [*webhooks],
            },
            source="turn",
        )
        submission = Submission(labels or {}, idempotency_key=idempotency_key)
        return self.submit_checked(checked_turn(turn, self.definitions), submission)

    @overload
    def submit_workflow(
        self,
        workflow: str,
        given: str,
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> TurnRun: ...

    @overload
    def submit_workflow(
        self,
        workflow: str | Callable[..., Any],
        given: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> ChainRun: ...

    def submit_workflow(
        self,
        workflow: str | Callable[..., Any],
        given: str | Mapping[str, Any],
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> TurnRun | ChainRun:
        """Submit a turn to a workflow that is a chain, or the input of one in Python. Return the handle of its run.

        Args:
            workflow: Its name in the configuration; of one in Python also its function.
            given: The text of a turn, otherwise like `submit_turn`; for a workflow in Python also the arguments of its function by name:
                JSON, pydantic models, dataclasses, dates and times, enums, UUIDs, decimals, sets and tuples.
            session: The conversation of a turn.
            timeout_s: The time limit of the run, in seconds; that of the configuration if None.
            idempotency_key: As in `submit_turn`.
            labels: Labels of the run.
            webhooks: As in `submit_turn`.

        Raises:
            ConfigError: The configuration has no such workflow, or the input is not JSON.
        """
        name = workflow if isinstance(workflow, str) else _workflow_name(workflow, self.definitions)
        if timeout_s is not None:
            bounds.duration_of(timeout_s, "timeout_s")
        if isinstance(given, str):
            return self.submit_turn(
                given,
                workflow=name,
                session=session,
                timeout_s=timeout_s,
                idempotency_key=idempotency_key,
                labels=labels,
                webhooks=webhooks,
            )
        request = workflow_request(name, plain_input(given), self.definitions, timeout_s)
        return self.submit_chain(request, idempotency_key=idempotency_key, labels=labels, webhooks=webhooks)

    def submit_chain(
        self,
        request: ChainRequest | Mapping[str, Any] | str | Path,
        *,
        initial_input: Mapping[str, JsonValue] | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> ChainRun:
        """Submit a chain request, and return the handle of its run.

        Args:
            request: The request as data, the name of its file, or the name of a chain of the configuration.
            initial_input: Replaces the request's own input.
            timeout_s: Replaces the request's own time limit, in seconds.
            idempotency_key: The same key gives the same run.
            labels: Labels of the run; `tenant` names its tenant.
            webhooks: As in `submit_turn`, beside the request's own.

        Raises:
            ConfigError: The request has faults, all of which `faults` lists, or the tenant's quota is used up. Nothing was run.
            UnavailableError: Redis cannot be reached.
        """
        submission = Submission(labels or {}, webhooks, timeout_s, idempotency_key)
        return self.submit_checked(self.engine.checked_chain(request, initial_input, submission), submission)

    @overload
    def submit_checked(self, checked: CheckedTurn, submission: Submission) -> TurnRun: ...

    @overload
    def submit_checked(self, checked: CheckedChain, submission: Submission) -> ChainRun: ...

    def submit_checked(self, checked: CheckedTurn | CheckedChain, submission: Submission) -> TurnRun | ChainRun:
        """Submit a request that was checked with this client's definitions. Raises ConfigError."""
        if isinstance(checked, CheckedTurn):
            return TurnRun(self.engine, self.engine.accept(checked, submission))
        queue = choose_start_queue(checked.request, self.definitions, self.engine.step_costs())
        return ChainRun(self.engine, self.engine.accept(checked.with_id(), submission, queue))

    def test_webhook(self, name: str) -> WebhookRun:
        """Have a worker post a signed test message to a webhook of the configuration, or a URL, once. Raises ConfigError."""
        return WebhookRun(self.engine, post_test(self.engine, name))

    def run(self, run_id: str) -> TurnRun | ChainRun:
        """Return a run by its id. Raises UnknownRunError."""
        return self.of(None).find(run_id)

    def fork(
        self,
        run_id: str,
        from_step: str,
        *,
        changes: Mapping[str, JsonValue] | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TurnRun | ChainRun:
        """Run a closed run again from a step on, as a new run. Steps upstream keep their outcomes and are not executed again.

        The fork has the definitions and labels of its source, and the source's id in the label `forked_from`. The fork of a session's
        turn reads the conversation but is not recorded in it. The same `idempotency_key` for the same source gives the same fork.

        Args:
            run_id: The source.
            from_step: The first step to execute again.
            changes: Changes of the input, such as {"input.x": 5}; only steps that are executed again see them.
            idempotency_key: As in `submit_turn`.
            labels: Labels that replace those of the source.

        Raises:
            ConfigError: The source is not over, has no such step, or does not fit the changes.
            UnknownRunError: There is no such run.
        """
        return self.run(fork(self.engine, run_id, from_step, changes or {}, idempotency_key, labels))

    def retry(
        self, run_id: str, *, idempotency_key: str | None = None, labels: Mapping[str, str] | None = None
    ) -> TurnRun | ChainRun:
        """Run the unfinished part of a failed, cancelled or timed-out run again, as a new run; otherwise like `fork`.

        The source's record then has the id of its newest retry, `retried_as`.
        """
        return self.run(fork(self.engine, run_id, None, {}, idempotency_key, labels))

    def runs(self, *, most: int = 20) -> list[RunRecord]:
        """Return the newest runs, at most `most`, without their steps."""
        return self.ledger.reader.newest(most=most)

    def inbox(
        self, *, tenant: str | None = None, labels: Mapping[str, str] | None = None, who: str = "", most: int = 100
    ) -> list[InboxItem]:
        """Return the steps that wait for a person, the longest waiting first, at most `most`.

        Args:
            tenant: Only those of this tenant's runs; "" for runs without one, None for all.
            labels: Only those of runs with these labels.
            who: Only those that this name, group or scope may answer.
            most: How many.
        """
        return [*itertools.islice(inbox.iterate(self.ledger, InboxFilter(tenant, labels or {}, who)), most)]

    def answer(
        self,
        item_id: str,
        value: JsonValue,
        *,
        by: str = "",
        groups: Collection[str] | None = None,
        tenant: str | None = None,
    ) -> SignalAnswer:
        """Answer a step that waits for a person, by the `id` of its item; return the outcome, and a message.

        Args:
            item_id: The item's `id`, `RUN/STEP`.
            value: The answer, which becomes the output of the step.
            by: The author, who is recorded with it.
            groups: The author's names and groups, one of which a wait with `who` must list; None may answer all.
            tenant: The tenant whose runs may be answered; None for all.

        Raises:
            UnknownRunError: No such step waits.
            ConfigError: The value does not fit the `answer_schema` of the step (`bad_answer`, with each field that is wrong).
        """
        run_id, step = split_id(item_id)
        return self.of(tenant).signal(run_id, step, value, by=by, groups=groups, action="inbox.answer")

    def audit(
        self,
        *,
        tenant: str | None = None,
        since: float | None = None,
        by: str = "",
        action: str = "",
        run_id: str = "",
        most: int = 100,
    ) -> list[AuditEntry]:
        """Return the newest entries of the audit log, newest first, at most `most`: who acted on runs, schedules, batches and the fleet.

        Args:
            tenant: Only those about this tenant; "" for those about none and about the fleet, None for all.
            since: Only those since then, seconds since 1970.
            by: Only those of this token, or `user@host`.
            action: Only those of this action, such as `run.cancel`, or of all that begin so, such as `run`.
            run_id: Only those about this run.
            most: How many.
        """
        wanted = AuditFilter(tenant, since, by, action, run_id)
        return [*itertools.islice(AuditStore(self.ledger).iterate(wanted), most)]

    @property
    def sessions(self) -> Sessions:
        """The conversations of turns without a tenant; `sessions.of(tenant)` are those of a tenant."""
        return self.of("").sessions

    @property
    def schedules(self) -> Schedules:
        """The schedules without a tenant; `schedules.of(tenant)` are those of a tenant."""
        return self.of("").schedules

    @property
    def memory(self) -> MemoryStore:
        """The memory bank without a tenant; `memory.of(tenant=..., session=...)` is that of a tenant or session."""
        return self.of("").memory

    @property
    def batches(self) -> Batches:
        """The batches without a tenant; `batches.of(tenant)` are those of a tenant."""
        return self.of("").batches

    def batch(
        self,
        rows: Iterable[Row],
        *,
        agent: str | None = None,
        team: str | None = None,
        chain: str | None = None,
        workflow: str | None = None,
        name: str | None = None,
        mode: BatchMode = "live",
        concurrency: int | None = None,
        budget_usd: float | None = None,
        ordered: bool = False,
        columns: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        webhooks: Sequence[str] = (),
    ) -> Generator[BatchRow, None, None]:
        """Send each row to an agent, team, chain or workflow, and yield the results as they come.

        A result counts as delivered when the next but those of its group is asked for. The same rows with the same name go on where
        another process stopped: only rows whose result was not delivered are yielded. It ends early if the batch is cancelled, or if its
        budget is spent: `batches.find(name)` has its state.

        Args:
            rows: Texts, or objects: for an agent or team with the field `text` or a single one, else the input.
            agent, team, chain, workflow: The receiver; exactly one.
            name: Its name, unique for its tenant; a random one if None.
            mode: `provider`: a batch of the model's provider answers the rows, within a day and mostly at half the price; for agents that
                need one model call.
            concurrency: The number of rows that are open at most; None for 100, with a provider's batches 50,000.
            budget_usd: Submit no row that would probably make the batch cost more, in US dollars.
            ordered: Yield the results in the order of the rows.
            columns: Field of a row → field of the input.
            labels: Labels of the runs; `tenant` names their tenant, and that of the batch.
            webhooks: Names of the configuration or URLs, which get a message when the batch is done or cancelled.

        Raises:
            ConfigError: The configuration has no such receiver, the first row does not fit it, the batch of this name differs, or another
                process feeds it.
        """
        feed = self.feed_batch(
            rows,
            agent=agent,
            team=team,
            chain=chain,
            workflow=workflow,
            name=name,
            mode=mode,
            concurrency=concurrency,
            budget_usd=budget_usd,
            ordered=ordered,
            columns=columns,
            labels=labels,
            webhooks=webhooks,
        )
        for group in feed.groups():
            yield from group
            feed.deliver(group)

    def feed_batch(
        self,
        rows: Iterable[Row],
        /,
        *,
        agent: str | None = None,
        team: str | None = None,
        chain: str | None = None,
        workflow: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        group_s: float = 0.0,
        **options: Any,
    ) -> BatchFeed:
        """Begin a batch or go on with it, as `batch`, for callers that record delivered results themselves.

        Args:
            group_s: How long results are collected before they are yielded together.
            options: Those of `batch`, such as `mode`, and `source`, `out` and `file` of `Batches.open`.
        """
        own = dict(labels or {})
        batches = self.batches.of(own.get("tenant", ""))
        target = batch_target(agent=agent, team=team, chain=chain, workflow=workflow)
        given = iter(rows)
        first = [*itertools.islice(given, 1)]
        for row in first:  # a batch that was begun would keep a misspelt name, or a file that cannot be read
            try:
                RowRequests(self.engine, target, options.get("columns") or {}, options.get("mode", "live")).request(
                    0, row
                )
            except ConfigError as error:
                if error.code != BAD_VALUE:
                    raise
        batch = batches.open(name or uuid.uuid4().hex[:12], target, labels=own, **options)
        return BatchFeed(self.engine, batches, batch, itertools.chain(first, given), labels=own, group_s=group_s)

    @property
    def fleet(self) -> Fleet:
        """The workers of the service, their load, and paused models."""
        return Fleet(self.engine)

    def fleet_warnings(self) -> list[str]:
        """Return warnings about the fleet: standard queues without a worker, clocks that are off, workers older than this client."""
        has_tasks = any(tool.task for tool in self.definitions.tools.values())
        queues = ("coordinator", "agents", "tools", *([TASKS] if has_tasks else []))
        return self.fleet.warnings(queues, __version__)

    def close(self) -> None:
        """Close the connections; runs go on."""
        self.engine.publisher.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EmbeddedClient(Client):
    """A client with a stack of its own, which `close` stops."""

    def __init__(
        self, home: str | Path | None = None, *, config: str | Path | Definitions | None = None, **options: Any
    ) -> None:
        self.stack = embedded.Stack.start(embedded.Home(home) if home else None, **options)
        try:
            super().__init__(self.stack.url, config=config)
        except BaseException:
            self.stack.stop()
            raise

    def skip(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Advance the timers of the ledger: `Stack.skip` of a stack that was started with `virtual_time=True`.

        Raises ConfigError without that, or unless the time is a number from 0.001 s; UnavailableError if no worker of the stack answers.
        """
        self.stack.skip(seconds, minutes=minutes, hours=hours, days=days)

    def close(self) -> None:
        """Close the connections and stop the stack."""
        super().close()
        self.stack.stop()


def _user_app(app: Celery | None) -> Celery | None:
    """Return the user's application: the given one, else the one that CANTATA_APP names."""
    check_extras("celery", needed_by="CANTATA_APP")
    from cantata.engine.dispatch import user_app  # noqa: PLC0415  # a program without an application need not have Celery

    return user_app.configured() if app is None else user_app.resolve(app)


def _redis_url_of(app: Celery) -> str | None:
    from cantata.engine.dispatch import user_app  # noqa: PLC0415  # as above

    return user_app.redis_url_of(app)


def _publisher(redis_url: str, broker_url: str | None, namespace: str | None, app: Celery | None) -> Publisher:
    from cantata.engine.dispatch.celery_app import make_app  # noqa: PLC0415  # as above

    return make_app(redis_url, broker_url, namespace=namespace, beside=app)


def _workflow_name(function: Callable[..., Any], definitions: Definitions) -> str:
    """Return the name of a workflow's function in a configuration. Raises ConfigError."""
    try:
        reference = reference_of(function)
    except TypeError as error:
        raise ConfigError(str(error), source="workflow") from None
    found = next((name for name, known in definitions.workflows.items() if known.function == reference), None)
    if found is None:
        raise ConfigError(
            f"the configuration has no workflow with the function {reference!r}; add it under 'workflows'",
            source="workflow",
        )
    return found
