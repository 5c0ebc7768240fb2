"""All metrics: what they are called, what tells their series apart, and what they say. The page of metrics is written from this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["worker", "gateway", "both"]

STEP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
WAIT_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)
CALL_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    source: Source
    """Who shows it: workers of what they did themselves, the gateway of the whole fleet."""
    buckets: tuple[float, ...] = ()


FAMILIES: Sequence[Family] = (
    Family("cantata_steps_total", "counter", ("kind", "status"), "Attempts of steps that ended, by how.", "worker"),
    Family("cantata_step_duration_seconds", "histogram", ("kind",), "How long an attempt of a step took.", "worker", STEP_S),
    Family("cantata_queue_wait_seconds", "histogram", ("queue",), "How long a step waited, sent and not begun.", "worker", WAIT_S),
    Family("cantata_model_calls_total", "counter", ("model", "outcome"), "Requests to models, by how they ended.", "worker"),
    Family("cantata_model_call_duration_seconds", "histogram", ("model",), "How long a request to a model took.", "worker", CALL_S),
    Family("cantata_model_tokens_total", "counter", ("model", "direction"), "Tokens of requests (input) and replies (output).", "worker"),
    Family("cantata_model_cost_usd_total", "counter", ("model",), "US dollars that replies cost, where the price is known.", "worker"),
    Family("cantata_limit_waits_total", "counter", ("model", "reason"), "Model calls put off since shared limits had no room.", "worker"),
    Family(
        "cantata_limit_wait_seconds_total", "counter", ("model", "reason"), "Estimated seconds that such calls were put off by.", "worker"
    ),
    Family("cantata_budget_refusals_total", "counter", ("budget",), "Model calls not made since a budget was spent.", "worker"),
    Family("cantata_build_info", "gauge", ("version",), "1; its label says which version runs.", "both"),
    Family("cantata_redis_up", "gauge", (), "1 if Redis and the broker answered; 0: what follows is missing.", "gateway"),
    Family("cantata_runs_accepted_total", "counter", (), "Runs taken in, forks too.", "gateway"),
    Family("cantata_runs_closed_total", "counter", ("status",), "Runs that ended, by how.", "gateway"),
    Family("cantata_runs_open", "gauge", (), "Runs that are not over.", "gateway"),
    Family("cantata_runs_kept", "gauge", (), "Runs in Redis, over or not.", "gateway"),
    Family("cantata_steps_ready", "gauge", (), "Steps sent and not begun, in all queues, as the ledger has it.", "gateway"),
    Family("cantata_leases_lost_total", "counter", (), "Leases that ran out: a worker died, froze or lost Redis.", "gateway"),
    Family("cantata_steps_recovered_total", "counter", (), "Steps sent again since their lease was lost.", "gateway"),
    Family("cantata_queue_ready", "gauge", ("queue",), "Messages waiting in a queue: a step each, or a batch of cheap ones.", "gateway"),
    Family("cantata_queue_leased", "gauge", ("queue",), "Steps of a queue that workers are doing.", "gateway"),
    Family("cantata_queue_slots", "gauge", ("queue",), "Steps of a queue that its workers can do at once.", "gateway"),
    Family("cantata_queue_workers", "gauge", ("queue",), "Worker processes that serve a queue.", "gateway"),
    Family("cantata_queue_oldest_wait_seconds", "gauge", ("queue",), "Age of the message that waits longest; 0 if none waits.", "gateway"),
    Family("cantata_dead_letters", "gauge", (), "Messages kept that came in our queues and were no steps.", "gateway"),
    Family("cantata_sweep_age_seconds", "gauge", (), "How long ago the last sweep for lost work ended.", "gateway"),
    Family("cantata_redis_memory_bytes", "gauge", (), "Memory that Redis uses, for all that it holds.", "gateway"),
    Family("cantata_redis_memory_limit_bytes", "gauge", (), "Its maxmemory; 0 if it has none.", "gateway"),
    Family("cantata_redis_memory_own_estimate_bytes", "gauge", (), "About how much of it kept runs and sessions take.", "gateway"),
)

BY_NAME = {family.name: family for family in FAMILIES}
