"""Fleet: the workers of a service, their load, and the models that are paused, for operators and autoscalers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from cantata.engine.engine import Engine
from cantata.engine.fleet import holds, load, registry
from cantata.engine.fleet.holds import Drain, PausedQueue
from cantata.engine.fleet.load import USUAL_QUEUES, FleetLoad, QueueLoad
from cantata.engine.fleet.registry import Worker
from cantata.engine.fleet.sizes import Sizes
from cantata.engine.limits.limiter import Limiter, PausedModel, paused_models
from cantata.engine.publisher import COORDINATOR, TASKS
from cantata.errors import ConfigError, UnavailableError
from cantata.features.audit.audit import recorded
from cantata.flows import webhooks
from cantata.flows.definitions import Definitions
from cantata.ledger.parked import Action, ParkedItem, ParkedStore
from cantata.ledger.redis import clock
from cantata.text.suggestions import did_you_mean, hint, nearest

log = structlog.get_logger(__name__)

REFUSED_S = 20.0  # after Redis has refused a write; Prometheus looks every 15 s
REFUSED = (
    "it refused some a moment ago, since it is full (maxmemory) or cannot write its disk; nothing recorded is lost"
)

PAUSE_WARNINGS: Mapping[str, str] = {
    COORDINATOR: "while it is paused, runs that need a plan do not start, and open runs stop at decisions that wait for a coordinator",
    TASKS: "while it is paused, results of your Celery tasks are recorded only by workers that are still watching them",
}
"""Queue → what its pause stops besides its own steps."""


class Fleet:
    """The fleet of a service. Every method blocks for some milliseconds, and raises UnavailableError or RedisFailure without Redis."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes = Sizes()
        self._lock = threading.Lock()
        self._refused: int | None = None
        self._refused_at = -REFUSED_S

    def workers(self) -> Sequence[Worker]:
        """Return the worker processes that were alive within the last seconds."""
        return registry.workers(self._engine.ledger.redis)

    def faults(self) -> list[str]:
        """Return the reasons why runs would not be executed now; none if they would."""
        redis = self._engine.ledger.redis
        if fault := load.write_error(redis):
            return [fault]
        workers = registry.workers(redis)
        served = {queue for worker in workers for queue in worker.serving}
        unserved = [registry.unserved(queue, workers) for queue in USUAL_QUEUES if queue not in served]
        return unserved or [*filter(None, [load.sweep_fault(redis, workers)])]

    def warnings(self, queues: Sequence[str], version: str) -> list[str]:
        """Return warnings: queues without a worker, clocks that are off, workers older than this version."""
        return registry.warnings_for(self._engine.ledger.redis, queues, version)

    def load(self) -> FleetLoad:
        """Return the workers, open runs and totals.

        A Redis that is nearly full takes small writes again and again. So one that has refused any since the last call refuses writes.
        """
        found, now = load.measure(self._engine.ledger.redis), time.monotonic()
        with self._lock:
            if self._refused is not None and found.refused_writes > self._refused:
                self._refused_at = now
            self._refused = found.refused_writes
            is_refusing = now - self._refused_at < REFUSED_S
        return replace(found, write_error=REFUSED, lost_workers=()) if is_refusing and not found.write_error else found

    def ready_queues(self) -> set[str]:
        """Return queues that steps wait in."""
        return load.list_ready_queues(self._engine.ledger.redis)

    def queues(self, names: Iterable[str] | None = None, *, fleet: FleetLoad | None = None) -> dict[str, QueueLoad]:
        """Return the load of queues, asked of the broker now, beside a load of the fleet. Raises UnavailableError without a broker.

        Args:
            names: The queues; None for all that are known.
            fleet: The load of the fleet, if it was measured just now.
        """
        from cantata.engine.dispatch.celery_app import App  # noqa: PLC0415  # a program without a broker has no Celery
        from cantata.engine.dispatch.queues import waiting  # noqa: PLC0415  # as above

        if not isinstance(self._engine.publisher, App):
            raise UnavailableError("this process has no broker, so it does not know what waits in queues")
        named = sorted(self._known_queues()) if names is None else names
        return load.queues(fleet or self.load(), waiting(self._engine.publisher, named))

    # --- decisions of operators --------------------------------------------------------------------------------------

    def drain(self, name: str, *, by: str = "", exits: bool = False) -> Worker:
        """Let a worker take no more work, and finish or release its steps as at its end; return it as it was.

        Args:
            name: Its full name, or the beginning of it that no other worker has.
            by: Who decided so; it is recorded.
            exits: Whether its process ends then. Else it stays, until it is restarted or `undrain`ed.

        Raises ConfigError if there is no such worker.
        """
        worker = self._worker_named(name)
        redis = self._engine.ledger.redis
        known = holds.drain_of(redis, worker.name, pid=worker.pid, started_at=worker.started_at)
        if known is None or (exits and not known.exits):
            asked = Drain(
                name=worker.name,
                pid=worker.pid,
                started_at=worker.started_at,
                since=known.since if known else clock.synchronize(redis),
                by=by,
                exits=exits,
            )
            with recorded(self._engine.ledger, "worker.drain", target=worker.name, by=by):
                holds.drain(redis, asked)
            log.info("worker_drain_requested", name=worker.name, by=by, exits=exits)
        return worker

    def undrain(self, name: str, *, by: str = "") -> Worker:
        """Let a drained worker take work again; return it as it was. Raises ConfigError if there is no such worker."""
        worker = self._worker_named(name)
        with recorded(self._engine.ledger, "worker.undrain", target=worker.name, by=by) as entry:
            entry.was_done = holds.undrain(self._engine.ledger.redis, worker.name)
        log.info("worker_undrain_requested", name=worker.name, by=by)
        return worker

    def pause_queue(self, name: str, *, by: str = "") -> PausedQueue:
        """Let no worker take work from a queue until it is resumed, whatever restarts; return the pause, which may be an earlier one.

        What runs ends as usual, what is submitted waits, and deadlines of steps and runs keep running. Workers follow within two seconds,
        in a large fleet five. Raises ConfigError if no queue has this name.
        """
        known = self._known_queues() | {TASKS, webhooks.QUEUE}
        if name not in known:
            raise ConfigError(f"no queue is called {name!r}{did_you_mean(name, sorted(known))}")
        asked_at = clock.synchronize(self._engine.ledger.redis)
        with recorded(self._engine.ledger, "queue.pause", target=name, by=by) as entry:
            pause = holds.pause(self._engine.ledger.redis, name, by)
            entry.was_done = pause.since >= asked_at
        log.info("queue_paused", queue=name, by=pause.by, since=pause.since)
        return pause

    def resume_queue(self, name: str, *, by: str = "") -> None:
        """Let workers take work from a paused queue again. Raises ConfigError if it is not paused."""
        with recorded(self._engine.ledger, "queue.resume", target=name, by=by):
            if not holds.resume(self._engine.ledger.redis, name):
                paused = holds.paused(self._engine.ledger.redis)
                others = did_you_mean(name, paused) if paused else "; no queue is"
                raise ConfigError(f"queue {name!r} is not paused{others}")
        log.info("queue_resumed", queue=name, by=by)

    def _known_queues(self) -> set[str]:
        """Return the queues that are usual, that workers serve, that the configuration names, that are paused, or that steps wait in."""
        served = {queue for worker in self.workers() for queue in worker.queues}
        others = self._configured_queues() | self.ready_queues() | holds.paused(self._engine.ledger.redis).keys()
        return {*USUAL_QUEUES, *served, *others}

    def _configured_queues(self) -> set[str]:
        try:
            return queues_of(self._engine.definitions)
        except ConfigError:  # a queue can be paused whatever the configuration is like now
            return set()

    def _worker_named(self, name: str) -> Worker:
        workers = [worker for worker in self.workers() if not worker.unreadable]
        exact = [worker for worker in workers if name in (worker.name, worker.name.partition("@")[0])]
        found = exact or [worker for worker in workers if name and worker.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        names = sorted(worker.name for worker in found or workers)
        if found:
            raise ConfigError(f"{name!r} is the beginning of several workers: {', '.join(map(repr, names))}")
        others = hint(nearest(name, names)) if names else "; no worker of Cantata is running"
        note = "`submit workers list` has all; for one of your own Celery application use `celery -A APP control cancel_consumer`"
        raise ConfigError(f"no worker is called {name!r}{others}; {note}")

    # --- memory and models -------------------------------------------------------------------------------------------

    def estimated_bytes(self) -> float | None:
        """Return the estimated bytes of Redis that are ours, if they can be measured; the more often it is called, the better it knows."""
        return self._sizes.estimate(self._engine.ledger.redis)

    def paused_models(self) -> Sequence[PausedModel]:
        """Return the models that nobody calls for a while, since their providers asked for that."""
        return paused_models(self._engine.ledger.redis)

    def resume_model(self, name: str) -> bool:
        """End the pause of a model, given by LiteLLM's name; return False if it is not paused."""
        with recorded(self._engine.ledger, "model.resume", target=name) as entry:
            entry.was_done = Limiter(self._engine.ledger).resume(name)
        return entry.was_done

    def act_on_parked(self, item_id: str, action: Action, *, by: str = "") -> ParkedItem:
        """Have a parked item tried again, or drop it, as the author `by`. Raises ConfigError for another id."""
        with recorded(self._engine.ledger, f"parked.{action}", target=item_id, by=by) as entry:
            item = self.parked.act(item_id, action, entry.actor.name, entry.actor.signature())
            entry.detail = f"{item.duty} {item.item}"
        return item

    @property
    def parked(self) -> ParkedStore:
        """The items that the sweep could not handle, and has parked."""
        return self._engine.ledger.parked


def pause_warning(queue: str) -> str:
    """Return what the pause of a queue stops besides its own steps; empty if nothing."""
    return PAUSE_WARNINGS.get(queue, "")


def queues_of(definitions: Definitions) -> set[str]:
    """Return the queues that a configuration names."""
    tools = [*definitions.tools.values(), *definitions.skills.values()]
    return {tool.step_queue for tool in tools} | {agent.queue for agent in definitions.agents.values()}
