"""Fleet: the workers of a service, their load, and the models that are paused, for operators and autoscalers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cantata.engine.engine import Engine
from cantata.engine.fleet import load, registry
from cantata.engine.fleet.load import USUAL_QUEUES, FleetLoad, QueueLoad
from cantata.engine.fleet.registry import Worker
from cantata.engine.fleet.sizes import Sizes
from cantata.engine.limits.limiter import Limiter, PausedModel, paused_models
from cantata.errors import UnavailableError
from cantata.features.audit.audit import recorded
from cantata.ledger.parked import Action, ParkedItem, ParkedStore


class Fleet:
    """The fleet of a service. Every method blocks for some milliseconds, and raises UnavailableError or RedisFailure without Redis."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes = Sizes()

    def workers(self) -> Sequence[Worker]:
        """Return the worker processes that were alive within the last seconds."""
        return registry.workers(self._engine.ledger.redis)

    def faults(self) -> list[str]:
        """Return the reasons why runs would not be executed now; none if they would."""
        redis = self._engine.ledger.redis
        if fault := load.write_error(redis):
            return [fault]
        workers = registry.workers(redis)
        served = {queue for worker in workers for queue in worker.queues}
        unserved = [registry.unserved(queue) for queue in USUAL_QUEUES if queue not in served]
        return unserved or [*filter(None, [load.sweep_fault(redis, workers)])]

    def warnings(self, queues: Sequence[str], version: str) -> list[str]:
        """Return warnings: queues without a worker, clocks that are off, workers older than this version."""
        return registry.warnings_for(self._engine.ledger.redis, queues, version)

    def load(self) -> FleetLoad:
        """Return the workers, open runs and totals."""
        return load.measure(self._engine.ledger.redis)

    def ready_queues(self) -> set[str]:
        """Return queues that steps wait in."""
        return load.list_ready_queues(self._engine.ledger.redis)

    def queue_loads(self, fleet: FleetLoad, queues: Iterable[str]) -> dict[str, QueueLoad]:
        """Return the load of queues, asked of the broker now, beside a load of the fleet. Raises UnavailableError without a broker."""
        from cantata.engine.dispatch.celery_app import App  # noqa: PLC0415  # a program without a broker has no Celery
        from cantata.engine.dispatch.queues import waiting  # noqa: PLC0415  # as above

        if not isinstance(self._engine.publisher, App):
            raise UnavailableError("this process has no broker, so it does not know what waits in queues")
        return load.queues(fleet, waiting(self._engine.publisher, queues))

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
