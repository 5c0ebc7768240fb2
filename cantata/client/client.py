"""Asks for runs and reads them: the Python door."""

from __future__ import annotations

import copy
import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from cantata import __version__, embedded, fault_points
from cantata.config import chain_requests
from cantata.config import loading as configuration
from cantata.config.faults import nearest
from cantata.coordinator import fork_requests
from cantata.coordinator.sweeper import COORDINATOR, announce_run, definitions_from, send_ready, starting_queue
from cantata.dispatch.celery_app import make_app
from cantata.errors import ConfigError, Fault, UnavailableError
from cantata.models.definitions import Definitions
from cantata.models.events import RunEvent, RunWarning
from cantata.models.values import JsonValue
from cantata.models.wire import ChainEvent, ChainRequest, ChainResponse, RunResult, RunStatus, Turn
from cantata.observability import traces
from cantata.observability.logs.lines import Line
from cantata.planning import rewind as rewinding
from cantata.planning.chain_checks import checks
from cantata.planning.turns import turn_plan
from cantata.runs.results import bodies_of, chain_event, chain_response, turn_result
from cantata.settings import settings
from cantata.state.fleet import registry
from cantata.state.forks import fork_store
from cantata.state.limits import step_costs
from cantata.state.limits.quotas import Quotas
from cantata.state.memory.bank import MemoryBank
from cantata.state.redis import clock
from cantata.state.redis.connection import check, connect
from cantata.state.redis.keys import definitions_digest, shard_of
from cantata.state.runs import event_log, log_store, trace_roots
from cantata.state.runs.ledger import EARLY_SIGNALS, Ledger
from cantata.state.runs.records import Place, RunRecord, StepRecord
from cantata.state.sessions import conversations
from cantata.state.sessions.conversations import Sessions

CLIENT_PATIENCE_S = 5.0
COSTS_FRESH_S = 2.0
MOST_COMPARED = 1000  # ids of steps that a misspelt one is compared with
LOOK_S = 5.0  # how often one who waits looks whether the run is still known


class Run:
    """A run that was accepted: it goes on whether or not anyone watches."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client = client
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    def status(self) -> RunStatus:
        """How it stands."""
        return self._client.ledger.status(self.run_id)

    def record(self, names: Sequence[str] | None = None) -> RunRecord:
        """All that is known of it; with `names`, outputs only of the steps that answer to these, and of its terminals."""
        return self._client.ledger.read(self.run_id, names)

    def steps(self, step_ids: Sequence[str]) -> Mapping[str, StepRecord]:
        """What is known of some of its steps, by id; unknown ones are left out."""
        return self._client.ledger.records(self.run_id, step_ids)

    def log(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Its events as they come, from after `from_offset` (from the start if None), until it is over."""
        return event_log.follow(self._client.redis, self.run_id, after=from_offset or 0, timeout_s=timeout_s)

    def logs(self, *, follow: bool = False) -> Iterator[Line]:
        """What workers and tools logged for it, on all machines, in the order it was said; with `follow` as it comes, until it is over."""
        kept = log_store.Logs(self._client.redis, self.run_id)
        yield from kept.follow() if follow else kept.read()

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """Wait until it is over. Raises TimeoutError past `timeout_s`, and the run goes on; UnknownRunError if it is gone."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while not event_log.wait_closed(self._client.redis, self.run_id, timeout_s=_at_most(LOOK_S, give_up)):
            self.status()  # a run that Redis lost would be waited for in vain
            if give_up is not None and time.monotonic() >= give_up:
                raise TimeoutError(f"run {self.run_id} is not over after {timeout_s} s; it goes on")
        return self.record()

    def cancel(self) -> RunStatus:
        """End it; what its workers do is stopped within a second or two. Answers its status after that."""
        status = self._client.ledger.cancel(self.run_id)
        self._end_trace()
        return status

    def signal(self, step_id: str, value: JsonValue) -> str:
        """Give a waiting step its value: 'taken', 'kept' until it waits, 'over', 'closed', 'unknown'; 'unclear' if several are meant.

        The step is named by its id, or by the end of that, as its file has it: 'ask' for 'flow/ask'. 'full' if the run keeps as many
        signals for steps that do not wait yet as it may; raises ConfigError if its tenant does (`quota_exceeded`).
        """
        refused = self._client.quotas.early_signal_refusal(self.run_id, self._client.definitions.limits)
        word, ready = self._client.ledger.signal(self.run_id, step_id, value, max_kept=0 if refused else EARLY_SIGNALS)
        if refused and word == "full":
            raise refused
        send_ready(self._client.app, ((self.run_id, step) for step in ready))
        self._end_trace()
        return word

    def nearest_step(self, name: str) -> str | None:
        """The step whose id, or the end of it, is most like this name, if one is like it."""
        ids = self._client.ledger.step_ids(self.run_id, MOST_COMPARED)
        return nearest(name, [*ids, *{step_id.rpartition("/")[2] for step_id in ids}])

    def _end_trace(self) -> None:
        """What we did may have ended the run, and then nobody else gives its trace a root."""
        trace_roots.end(traces.for_client(__version__), self._client.ledger, self.run_id)


class TurnRun(Run):
    """A user turn."""

    def events(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Its events as they come, from after `from_offset`, until it is over."""
        return self.log(from_offset, timeout_s=timeout_s)

    def result(self, timeout_s: float | None = None) -> RunResult:
        """Wait until it is over and answer how it ended. Raises TimeoutError past `timeout_s`; the run goes on."""
        record = self.wait(timeout_s)
        warnings = [event.message for event in self.log() if isinstance(event, RunWarning)]
        return turn_result(record).model_copy(update={"warnings": warnings})

    def so_far(self) -> RunResult:
        """How far it is, or how it ended, without waiting."""
        return turn_result(self.record(()))


class ChainRun(Run):
    """A chain request."""

    def events(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[ChainEvent]:
        """What happens to its nodes as it happens, from after `from_offset`, until it is over."""
        request = self.request
        bodies = bodies_of(request)
        for event in self.log(from_offset, timeout_s=timeout_s):
            known = self._client.ledger.records(self.run_id, [event.step]) if event.step and event.ends_step else {}
            found = chain_event(event, request, bodies, known.get(event.step or ""))
            if found is not None:
                yield found

    def result(self, timeout_s: float | None = None) -> ChainResponse:
        """Wait until it is over and answer how it ended. Raises TimeoutError past `timeout_s`; the run goes on."""
        return chain_response(self.wait(timeout_s))

    def so_far(self) -> ChainResponse:
        """How far it is, or how it ended, without waiting."""
        return chain_response(self.record([node.node_id for node in self.request.nodes]))

    @cached_property
    def request(self) -> ChainRequest:
        """What was asked."""
        return ChainRequest.model_validate_json(self._client.ledger.request_of(self.run_id)[1])


class _Time(NamedTuple):
    """How long a run may take, and the setting that says so; None seconds: the default."""

    seconds: float | None
    by: str


class Client:
    """The way in: submits turns and chains, finds runs.

    `redis_url` is REDIS_URL if None, else the stack that `submit up` keeps in this folder. `config` is a configuration file or
    definitions; the usual search if None. `namespace` is CANTATA_NAMESPACE if None. Raises UnavailableError if there is nothing to
    talk to, ConfigError if the configuration has faults.
    """

    def __init__(
        self, redis_url: str | None = None, *, broker_url: str | None = None, config: str | Path | Definitions | None = None,
        namespace: str | None = None,
    ) -> None:  # fmt: skip
        said = settings()
        self.redis_url = redis_url or said.redis_url or embedded.url_here()
        self._config = config
        self.redis = connect(self.redis_url, namespace=namespace)
        self.warnings = check(self.redis, url=self.redis_url).warnings
        clock.learn(self.redis)
        self.app = make_app(self.redis_url, broker_url or said.broker_url, namespace=namespace)
        self.ledger = Ledger(self.redis, patience_s=CLIENT_PATIENCE_S, replicas=said.wait_replicas)
        self._known_costs: Mapping[str, Mapping[str, float]] = {}
        self._costs_at = -COSTS_FRESH_S

    @classmethod
    def embedded(cls, home: str | Path | None = None, *, config: str | Path | Definitions | None = None, **options: Any) -> EmbeddedClient:
        """A client with a stack of its own, started now and stopped when the `with` block ends."""
        return EmbeddedClient(home, config=config, **options)

    def with_definitions(self, definitions: Definitions) -> Client:
        """This client for runs that may name other things. Both share their connections, and either's `close` ends them."""
        other = copy.copy(self)
        other._config = definitions
        for known in ("definitions", "_definitions_text"):
            other.__dict__.pop(known, None)
        return other

    @cached_property
    def definitions(self) -> Definitions:
        """What runs may name."""
        return self.read_definitions()

    def find_config(self) -> Path | None:
        """Return the configuration that counts now; None if it is the built-in one, or was given as definitions. Raises ConfigError."""
        if isinstance(self._config, Definitions):
            return None
        return configuration.find(None if self._config is None else str(self._config))

    def read_definitions(self) -> Definitions:
        """Return what the configuration says now, which a client reads once. Raises ConfigError."""
        if isinstance(self._config, Definitions):
            return self._config
        return configuration.load_sound(self.find_config())

    def submit_turn(
        self, text: str, *, team: str | None = None, agent: str | None = None, workflow: str | None = None, session: str | None = None,
        send_history: bool = False, timeout_s: float | None = None, idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TurnRun:  # fmt: skip
        """Submit a user turn. The same `idempotency_key`, in the same session, gives the same run. Raises ConfigError before anything runs.

        The turns of one `session`, which belongs to the tenant that the label `tenant` names, run in the order they were submitted, and
        what is said in them is kept. With `send_history` what was said before stands before the text.
        """
        turn = Turn(
            text=text, team=team, agent=agent, workflow=workflow, session=session, send_history=send_history, timeout_s=timeout_s
        )  # fmt: skip
        faults = turn_plan.check(turn, self.definitions)
        if session is not None and (fault := conversations.fault_of(session)):
            faults.append(Fault(fault, "session"))
        if faults:
            raise ConfigError(faults, source="turn")
        request = turn.model_dump_json(exclude_defaults=True)
        own_s = self.definitions.chains[workflow].timeout_s if workflow else None
        allowed = _Time(timeout_s, "timeout_s of the turn") if timeout_s else _Time(own_s, f"timeout_s of chain {workflow!r}")
        return TurnRun(self, self._accept("turn", request, allowed, idempotency_key, labels, session=session))

    def submit_workflow(
        self, name: str, text: str, *, session: str | None = None, timeout_s: float | None = None, idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TurnRun:  # fmt: skip
        """Submit a user turn that a workflow answers: a chain of the configuration, which is given the text. As `submit_turn` otherwise."""
        return self.submit_turn(
            text, workflow=name, session=session, timeout_s=timeout_s, idempotency_key=idempotency_key, labels=labels
        )  # fmt: skip

    def submit_chain(
        self,
        request: ChainRequest | Mapping[str, Any] | str | Path,
        *,
        initial_input: Mapping[str, JsonValue] | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ChainRun:
        """Submit a chain request: as data, by the name of its file, or by the name of a chain of the configuration.

        `initial_input` and `timeout_s` stand in place of the request's own. The same `idempotency_key` gives the same run. Raises
        ConfigError with every fault.
        """
        request = self._request_of(request)
        if initial_input is not None:
            request = chain_requests.request_from({**request.model_dump(), "initial_input": dict(initial_input)})
        if timeout_s is not None:
            request = chain_requests.request_from({**request.model_dump(), "timeout": timeout_s})
        if not request.chain_id:
            request = request.model_copy(update={"chain_id": uuid.uuid4().hex[:8]})
        faults, code = checks.check(request, self.definitions)
        if faults:
            raise ConfigError(faults, source="chain request", code=code, asked=request.model_dump())
        return self.submit_checked(request, idempotency_key=idempotency_key, labels=labels)

    def submit_checked(
        self, request: ChainRequest, *, idempotency_key: str | None = None, labels: Mapping[str, str] | None = None
    ) -> ChainRun:  # fmt: skip
        """Submit a chain request in which `chains.check` found no fault with this client's definitions."""
        if not request.chain_id:
            request = request.model_copy(update={"chain_id": uuid.uuid4().hex[:8]})
        text = request.model_dump_json(exclude_defaults=True)
        queue = starting_queue(request, self.definitions, self._costs())
        allowed = _Time(request.timeout or None, "timeout of the request")
        run_id = self._accept("chain", text, allowed, idempotency_key, labels, queue)
        return ChainRun(self, run_id)

    def _request_of(self, request: object) -> ChainRequest:
        if isinstance(request, ChainRequest):
            return request
        if isinstance(request, (str, Path)):
            return configuration.request_named(str(request), self.definitions)[0]
        if isinstance(request, Mapping):
            return chain_requests.request_from(dict(request))
        wanted = "a ChainRequest, a mapping with its 'nodes', the name of its file, or of a chain of the configuration"
        raise ConfigError(f"a chain is submitted as {wanted}; not as {type(request).__name__!r}", source="chain request")

    def run(self, run_id: str) -> TurnRun | ChainRun:
        """A run by its id. Raises UnknownRunError."""
        kind, *_ = self.ledger.request_of(run_id)
        return ChainRun(self, run_id) if kind == "chain" else TurnRun(self, run_id)

    def fork(
        self, run_id: str, from_step: str, *, changes: Mapping[str, JsonValue] | None = None, idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> TurnRun | ChainRun:  # fmt: skip
        """Do a run that is over anew from a step on. What lies upstream is taken over as it ended, and no model is asked for it again.

        `changes` are of the input, such as {"input.x": 5}; only what is done anew sees them. The run's label `forked_from` is the other
        one; it has the other's labels, with `labels` over them, and its definitions. One of a session's turn reads the conversation, and
        is not written into it. The same `idempotency_key` for the same run gives the same fork. Raises ConfigError for what does not fit,
        UnknownRunError.
        """
        return self._made_of(run_id, from_step, changes or {}, idempotency_key, labels)

    def retry(self, run_id: str, *, idempotency_key: str | None = None, labels: Mapping[str, str] | None = None) -> TurnRun | ChainRun:
        """Do anew what a run left unfinished that failed, was cancelled or ran out of time; as `fork` does."""
        return self._made_of(run_id, None, {}, idempotency_key, labels)

    def _made_of(
        self, source: str, from_step: str | None, changes: Mapping[str, JsonValue], key: str | None, own: Mapping[str, str] | None
    ) -> TurnRun | ChainRun:
        past = fork_store.read(self.ledger, source)
        fork = rewinding.retry(past) if from_step is None else rewinding.fork(past, from_step)
        definitions = definitions_from(self.ledger.definitions(source, past.definitions))
        request, given = fork_requests.request_of(past, changes, definitions)
        run_id = _in_shard(shard_of(source), _new_id() if key is None else _owned_id(f"{source}\n{key}"))
        labels = {**fork_requests.labels_of(past, from_step), **(own or {})}
        self._check_quota(run_id, key, labels.get("tenant", ""))
        with traces.submitting("fork", __version__) as submission:
            since = clock.now()
            ready = fork_store.make(self.ledger, run_id, fork, request=request, given=given, labels=labels)
            submission.run_id, submission.source = run_id if ready else "", source
        fault_points.at("accepted")
        send_ready(self.app, ((run_id, step) for step in ready), sent_at=since)
        return self.run(run_id)

    def runs(self, *, most: int = 20) -> list[RunRecord]:
        """The newest runs, without their steps."""
        return self.ledger.runs(most=most)

    @property
    def sessions(self) -> Sessions:
        """The conversations of turns without a tenant; `sessions.of(tenant)` are those of a tenant."""
        return Sessions(self.ledger)

    @property
    def memory(self) -> MemoryBank:
        """What is remembered without a tenant; `memory.of(tenant=..., session=...)` is another's."""
        return MemoryBank(self.ledger, limits=self.definitions.limits)

    def fleet_warnings(self) -> list[str]:
        """What is to be said of the fleet now: usual queues that no worker serves, odd clocks, workers older than this client."""
        return registry.warnings_for(self.redis, ("coordinator", "agents", "tools"), __version__)

    def close(self) -> None:
        """Let go of connections; runs go on."""
        self.app.close()
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _accept(
        self, kind: str, request: str, allowed: _Time, idempotency_key: str | None, labels: Mapping[str, str] | None,
        queue: str = COORDINATOR, session: str | None = None,
    ) -> str:  # fmt: skip
        definitions = self.definitions
        if len(request.encode()) > definitions.limits.input_bytes:
            size, limit = len(request.encode()) / 1e6, definitions.limits.input_bytes / 1e6
            raise ConfigError(f"the request is {size:.1f} MB; the limit is {limit:.1f} MB (limits.input_bytes)", source=kind)
        place = self._place(session, (labels or {}).get("tenant", ""))
        run_id = _run_id(idempotency_key, place)
        self._check_quota(run_id, idempotency_key, (labels or {}).get("tenant", ""))
        with traces.submitting(kind, __version__) as submission:
            accepted = self.ledger.accept(
                run_id, kind=kind, request=request, definitions=self._definitions_text,
                timeout_s=allowed.seconds or definitions.defaults.timeout_s,
                timeout_by=allowed.by if allowed.seconds else "defaults.timeout_s",
                max_attempts=definitions.defaults.max_attempts,
                max_steps=definitions.limits.max_steps, labels=labels, queue=queue, retention_s=definitions.defaults.retention_s,
                session=place,
            )  # fmt: skip
            submission.run_id = run_id if accepted.new else ""
        if accepted.word == "full":
            most = definitions.sessions.max_waiting
            message = f"{most} turns of session {session!r} wait already (sessions.max_waiting); let some end first"
            raise ConfigError(message, source=kind, code="session_full")
        if accepted.word == "new":
            fault_points.at("accepted")
            announce_run(self.app, run_id, queue, accepted.priority)
        return run_id

    def _check_quota(self, run_id: str, key: str | None, tenant: str) -> None:
        """Refuse a new run past its tenant's quota; one that was submitted before with the same key is found again."""
        try:
            self.quotas.check(tenant, self.definitions.limits.quota_of(tenant))
        except (ConfigError, UnavailableError):
            if key is None or not self.ledger.is_known(run_id):
                raise

    @cached_property
    def quotas(self) -> Quotas:
        """What tenants may have."""
        return Quotas(self.ledger)

    def _place(self, session: str | None, tenant: str) -> Place | None:
        if session is None:
            return None
        kept = self.definitions.sessions
        return Place(conversations.scoped(tenant, session), kept.retention_s, kept.max_entries, kept.max_waiting)

    @cached_property
    def _definitions_text(self) -> str:
        return self.definitions.model_dump_json(exclude_defaults=True, by_alias=True)

    def _costs(self) -> Mapping[str, float]:
        """Return what work of this configuration costs, in milliseconds a step, as the fleet knew it a moment ago."""
        now = time.monotonic()
        if now - self._costs_at > COSTS_FRESH_S:
            self._known_costs, self._costs_at = step_costs.known(self.redis), now
        return self._known_costs.get(definitions_digest(self._definitions_text)[: step_costs.DIGEST_SIZE], {})


class EmbeddedClient(Client):
    """A client whose stack lives as long as it does."""

    def __init__(self, home: str | Path | None = None, *, config: str | Path | Definitions | None = None, **options: Any) -> None:
        self.stack = embedded.Stack.start(embedded.Home(home) if home else None, **options)
        try:
            super().__init__(self.stack.url, config=config)
        except BaseException:
            self.stack.stop()
            raise

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass for what the ledger keeps for later: `Stack.skip` of a stack that was started with `virtual_time=True`.

        Raises ConfigError without that, or unless `seconds` is a number from 0.001; UnavailableError if no worker of the stack answers.
        """
        self.stack.skip(seconds)

    def close(self) -> None:
        """Let go of connections and stop the stack."""
        super().close()
        self.stack.stop()


def run_id_of(idempotency_key: str) -> str:
    """The id of the run that a key gives, outside of sessions: known before it is submitted."""
    return _run_id(idempotency_key, None)


def _run_id(idempotency_key: str | None, place: Place | None) -> str:
    """A run id that sorts by time, milliseconds and then chance; or the one that belongs to a key. One in a session lies in its shard."""
    if place is None:
        return _new_id() if idempotency_key is None else _owned_id(idempotency_key)
    first = _new_id() if idempotency_key is None else _owned_id(f"{place.name}\n{idempotency_key}")
    return _in_shard(conversations.shard_of_session(place.name), first)


def _new_id() -> str:
    return f"{int(time.time() * 1000):011x}{uuid.uuid4().hex[:8]}"


def _owned_id(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:16]


def _in_shard(shard: int, first: str) -> str:
    """A run id that begins as another and lies in a shard."""
    return next(run_id for number in itertools.count() if shard_of(run_id := f"{first}{number:x}") == shard)


def _at_most(seconds: float, give_up: float | None) -> float:
    return seconds if give_up is None else max(0.0, min(seconds, give_up - time.monotonic()))
