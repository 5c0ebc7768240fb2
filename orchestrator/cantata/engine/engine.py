"""Engine: what a client and the services of features work with: the ledger in Redis, a publisher, and the configuration of new runs."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from cantata import bounds
from cantata.config import chain_requests
from cantata.config import loading as configuration
from cantata.config.faults import shown
from cantata.engine.limits import step_costs
from cantata.engine.publisher import COORDINATOR, Publisher
from cantata.engine.requests import CheckedChain, CheckedTurn, checked_chain, with_id
from cantata.engine.start import accept_run, check_labels, id_of_key, new_id
from cantata.errors import ConfigError, Fault, UnavailableError
from cantata.flows.definitions import Definitions, Limits
from cantata.flows.submission import AS_CONFIGURED, Submission
from cantata.flows.webhooks import webhooks_of
from cantata.flows.wire import ChainRequest
from cantata.ledger import conversations
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import KeptItem
from cantata.ledger.records import RunSession
from cantata.ledger.redis.keys import definitions_digest, id_in_shard
from cantata.values import JsonValue

COSTS_TTL_S = 2.0
USUAL_LIMITS = Limits()


class Engine:
    """A ledger, a publisher, and a configuration. Safe to share between threads.

    Args:
        ledger: The ledger.
        publisher: Sends the messages of steps: Celery, or nothing.
        config: A configuration file or definitions; if None, the configuration is searched for as the command line does.
    """

    def __init__(self, ledger: Ledger, publisher: Publisher, config: str | Path | Definitions | None) -> None:
        self.ledger, self.publisher = ledger, publisher
        self._config = config
        self._known_costs: Mapping[str, Mapping[str, float]] = {}
        self._costs_at = -COSTS_TTL_S

    # --- the configuration ------------------------------------------------------------------------------------------

    def with_definitions(self, definitions: Definitions) -> Engine:
        """Return an engine with other definitions and the same connections."""
        other = copy.copy(self)
        other._config = definitions
        for known in ("definitions", "definitions_text"):
            other.__dict__.pop(known, None)
        return other

    @cached_property
    def definitions(self) -> Definitions:
        """The definitions that runs may name."""
        return self.read_definitions()

    @property
    def limits(self) -> Limits:
        """The limits of the configuration, for what is done with stored runs and values.

        While the configuration has faults the usual ones count, so that runs can be signalled and retried from any machine.
        """
        try:
            return self.definitions.limits
        except ConfigError:
            return USUAL_LIMITS

    @cached_property
    def definitions_text(self) -> str:
        """The definitions as JSON text, as they are stored with runs."""
        return self.definitions.model_dump_json(exclude_defaults=True, by_alias=True)

    def find_config(self) -> Path | None:
        """Return the configuration that counts now; None if it is the built-in one, or was given as definitions. Raises ConfigError."""
        if isinstance(self._config, Definitions):
            return None
        return configuration.find(None if self._config is None else str(self._config))

    def read_definitions(self) -> Definitions:
        """Read the configuration as it is now; `definitions` reads it once. Raises ConfigError."""
        if isinstance(self._config, Definitions):
            return self._config
        return configuration.load_sound(self.find_config()).definitions

    def step_costs(self) -> Mapping[str, float]:
        """Return the milliseconds a step of each kind of work takes in this configuration, as measured by the fleet."""
        now = time.monotonic()
        if now - self._costs_at > COSTS_TTL_S:
            self._known_costs, self._costs_at = step_costs.known(self.ledger.redis), now
        return self._known_costs.get(definitions_digest(self.definitions_text)[: step_costs.DIGEST_SIZE], {})

    # --- requests ---------------------------------------------------------------------------------------------------

    def request_of(self, request: object) -> ChainRequest:
        """Return a chain request that is given as data, by the name of its file, or as a chain of the configuration. Raises ConfigError."""
        if isinstance(request, ChainRequest):
            return request
        if isinstance(request, (str, Path)):
            return configuration.request_named(str(request), self.definitions)[0]
        if isinstance(request, Mapping):
            return chain_requests.request_from(dict(request))
        expected = (
            "a ChainRequest, a mapping with 'nodes', the name of its file, or the name of a chain of the configuration"
        )
        raise ConfigError(f"expected {expected}, not a {type(request).__name__!r}", source="chain request")

    def checked_chain(
        self,
        request: object,
        initial_input: Mapping[str, JsonValue] | None = None,
        submission: Submission = AS_CONFIGURED,
    ) -> CheckedChain:
        """Return a chain request with another input, time limit and further webhooks, checked, with an id.

        `request` is as in `request_of`. Raises ConfigError with every fault.
        """
        request = chain_requests.with_changes(
            self.request_of(request),
            initial_input=initial_input,
            timeout_s=submission.timeout_s,
            webhooks=submission.webhooks,
        )
        return checked_chain(with_id(request), self.definitions)  # a refused one is answered by its id too

    # --- runs -------------------------------------------------------------------------------------------------------

    def accept(self, request: CheckedTurn | CheckedChain, submission: Submission, queue: str = COORDINATOR) -> str:
        """Accept a run and send its first step; return its id. The same key, in the same session, gives the same run.

        Raises:
            ConfigError: The labels are invalid, the session is full, the tenant's quota is used up, or the key is another tenant's.
            UnavailableError: Redis cannot be reached.
        """
        idempotency_key, labels, session = submission.idempotency_key, submission.labels, request.session
        definitions = self.definitions
        check_key(idempotency_key)
        check_labels(labels)
        scoped_session = conversations.run_session(labels.get("tenant", ""), session, definitions.sessions)
        run_id = run_id_of(idempotency_key, scoped_session)
        name = conversations.item_of(scoped_session.name) if scoped_session else None
        with self.starting(run_id, idempotency_key, labels, len(request.text), name):
            accepted = accept_run(
                self.ledger,
                run_id,
                kind=request.kind,
                request=request.text,
                definitions=definitions,
                definitions_text=self.definitions_text,
                timeout=request.timeout,
                labels=labels,
                target=request.target,
                queue=queue,
                session=scoped_session,
                webhooks=webhooks_of(definitions, request.webhooks, name=request.target, labels=labels),
            )
        if accepted.result == "full":
            max_waiting = definitions.sessions.max_waiting
            message = f"session {session!r} has {max_waiting} waiting turns, the limit (sessions.max_waiting); wait until some end"
            raise ConfigError(message, source=request.kind, code="session_full")
        if accepted.result == "new":
            self.publisher.announce_runs([(run_id, accepted.priority)], queue)
        elif self.ledger.runs.request_of(run_id)[3].get("tenant", "") != labels.get("tenant", ""):
            message = f"the idempotency key {idempotency_key!r} is that of a run of another tenant; begin keys with the tenant's name"
            raise ConfigError(message, source=request.kind, code="key_taken")
        return run_id

    @contextmanager
    def starting(
        self, run_id: str, key: str | None, labels: Mapping[str, str], size: int, session: KeptItem | None = None
    ) -> Iterator[None]:
        """Let a block start a run of so many bytes, if its tenant's quota allows; one submitted before with the same key is found again."""
        tenant = labels.get("tenant", "")
        with ExitStack() as stack:
            try:
                stack.enter_context(self.ledger.quotas.start(tenant, self.limits.quota_of(tenant), size, name=session))
            except (ConfigError, UnavailableError):
                if key is None or not self.ledger.runs.is_known(run_id):
                    raise
            yield


def check_key(idempotency_key: object) -> None:
    """Raise ConfigError unless an idempotency key is None, or a text."""
    if idempotency_key is not None and not (isinstance(idempotency_key, str) and bounds.is_text(idempotency_key)):
        raise ConfigError(
            [Fault(f"expected a text, found {shown(idempotency_key)}", where="idempotency_key")], source="request"
        )


def run_id_of(idempotency_key: str | None, session: RunSession | None = None) -> str:
    """Return the run id of a key; without one, a random id that sorts by time. The runs of a session are in its shard."""
    if session is None:
        return new_id() if idempotency_key is None else id_of_key(idempotency_key)
    first = new_id() if idempotency_key is None else id_of_key(f"{session.name}\n{idempotency_key}")
    return id_in_shard(conversations.shard_of_session(session.name), first)
