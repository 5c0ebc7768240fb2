"""All metrics: name, labels and help text. docs/metrics.md is generated from this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["worker", "gateway", "both"]

STEP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
WAIT_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0)
RUN_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)
FIRST_TOKEN_S = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
CALL_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    source: Source
    """The process that exports it: each worker its own counts, the gateway those of the whole fleet."""
    buckets: tuple[float, ...] = ()


FAMILIES: Sequence[Family] = (
    Family(
        "cantata_steps_total", "counter", ("kind", "status"), "Ended attempts of steps, by kind and outcome.", "worker"
    ),
    Family("cantata_step_duration_seconds", "histogram", ("kind",), "Duration of attempts of steps.", "worker", STEP_S),
    Family(
        "cantata_queue_wait_seconds",
        "histogram",
        ("queue",),
        "Time from dispatch to start of a step.",
        "worker",
        WAIT_S,
    ),
    Family("cantata_tool_calls_total", "counter", ("tool", "outcome"), "Ended attempts of calls of tools.", "worker"),
    Family(
        "cantata_run_duration_seconds",
        "histogram",
        ("name", "status", "tenant"),
        "Duration of runs that this worker ended, by the team, agent, chain or workflow; without those that post to webhooks.",
        "worker",
        RUN_S,
    ),
    Family(
        "cantata_model_calls_total", "counter", ("model", "outcome", "tenant"), "Model calls, by outcome.", "worker"
    ),
    Family(
        "cantata_model_first_token_seconds",
        "histogram",
        ("model",),
        "Time from a streamed model call to the first piece of its text.",
        "worker",
        FIRST_TOKEN_S,
    ),
    Family(
        "cantata_model_call_duration_seconds", "histogram", ("model",), "Duration of model calls.", "worker", CALL_S
    ),
    Family(
        "cantata_model_tokens_total",
        "counter",
        ("model", "direction", "tenant"),
        "Tokens of model calls: input and output.",
        "worker",
    ),
    Family(
        "cantata_model_cost_usd_total",
        "counter",
        ("model", "tenant"),
        "Cost of model calls in US dollars, where the price is known.",
        "worker",
    ),
    Family(
        "cantata_limit_waits_total", "counter", ("model", "reason"), "Model calls deferred by shared limits.", "worker"
    ),
    Family(
        "cantata_limit_wait_seconds_total",
        "counter",
        ("model", "reason"),
        "Estimated seconds by which calls were deferred.",
        "worker",
    ),
    Family(
        "cantata_budget_refusals_total",
        "counter",
        ("budget",),
        "Model calls refused because a budget was spent.",
        "worker",
    ),
    Family(
        "cantata_schedule_times_total",
        "counter",
        ("outcome",),
        "Times of schedules: fired, queued, skipped or missed.",
        "worker",
    ),
    Family(
        "cantata_schedule_lateness_seconds",
        "histogram",
        (),
        "Time from when a run was due by its schedule to its start.",
        "worker",
        WAIT_S,
    ),
    Family(
        "cantata_sweep_errors_total",
        "counter",
        ("duty",),
        "Errors of single items in a sweep, and of its duties.",
        "worker",
    ),
    Family("cantata_build_info", "gauge", ("version",), "Always 1; the label is the version.", "both"),
    Family(
        "cantata_redis_up",
        "gauge",
        (),
        "1 if Redis and the broker answered; if 0, the metrics below are missing.",
        "gateway",
    ),
    Family(
        "cantata_redis_writable",
        "gauge",
        (),
        "1 if Redis takes writes; if 0, it is full or cannot write its disk, and metrics of workers, slots and the sweep are missing.",
        "gateway",
    ),
    Family("cantata_runs_accepted_total", "counter", (), "Accepted runs, including forks.", "gateway"),
    Family(
        "cantata_runs_closed_total",
        "counter",
        ("status",),
        "Closed runs, by status; without those that post to webhooks.",
        "gateway",
    ),
    Family("cantata_webhooks_total", "counter", ("status",), "Ended runs that post to webhooks, by status.", "gateway"),
    Family("cantata_batches", "gauge", ("state",), "Batches, by state; ended ones since the ledger began.", "gateway"),
    Family(
        "cantata_batch_rows_total",
        "counter",
        ("outcome",),
        "Delivered rows of batches: succeeded or failed.",
        "gateway",
    ),
    Family(
        "cantata_code_modules_mixed", "gauge", (), "User modules that workers serve in several versions.", "gateway"
    ),
    Family(
        "cantata_workers_without_code",
        "gauge",
        (),
        "Workers that cannot import some of the code that steps need.",
        "gateway",
    ),
    Family("cantata_runs_open", "gauge", (), "Runs that are not closed.", "gateway"),
    Family("cantata_runs_waiting", "gauge", (), "Open runs with a step that waits for a person.", "gateway"),
    Family(
        "cantata_schedules_overdue", "gauge", (), "Schedules that should have been fired over a minute ago.", "gateway"
    ),
    Family("cantata_runs_kept", "gauge", (), "Runs stored in Redis, open or closed.", "gateway"),
    Family(
        "cantata_steps_ready", "gauge", (), "Steps dispatched and not started, in all queues, by the ledger.", "gateway"
    ),
    Family(
        "cantata_leases_lost_total", "counter", (), "Expired leases: a worker died, froze or lost Redis.", "gateway"
    ),
    Family(
        "cantata_steps_recovered_total", "counter", (), "Steps dispatched again after their lease expired.", "gateway"
    ),
    Family(
        "cantata_queue_ready",
        "gauge",
        ("queue",),
        "Messages waiting in a queue: one step each, or a batch of cheap ones.",
        "gateway",
    ),
    Family("cantata_queue_leased", "gauge", ("queue",), "Leased steps of a queue.", "gateway"),
    Family("cantata_queue_slots", "gauge", ("queue",), "Concurrency of the workers of a queue.", "gateway"),
    Family(
        "cantata_queue_workers",
        "gauge",
        ("queue",),
        "Worker processes that serve a queue, without drained ones.",
        "gateway",
    ),
    Family("cantata_queue_paused", "gauge", ("queue",), "1 while somebody has paused the queue, else 0.", "gateway"),
    Family(
        "cantata_queue_oldest_wait_seconds",
        "gauge",
        ("queue",),
        "Age of the oldest waiting message; 0 if there is none.",
        "gateway",
    ),
    Family(
        "cantata_workers_lost",
        "gauge",
        (),
        "Workers that vanished without a shutdown or froze, for ten minutes; missing while Redis refuses writes.",
        "gateway",
    ),
    Family(
        "cantata_workers_drained",
        "gauge",
        (),
        "Workers that take no work, as somebody decided; missing while Redis refuses writes.",
        "gateway",
    ),
    Family("cantata_dead_letters", "gauge", (), "Stored messages from the queues that were not steps.", "gateway"),
    Family(
        "cantata_model_paused_seconds", "gauge", ("model",), "Time until a paused model is called again.", "gateway"
    ),
    Family("cantata_sweep_age_seconds", "gauge", (), "Time since the last sweep ended.", "gateway"),
    Family("cantata_redis_memory_bytes", "gauge", (), "Memory that Redis uses in total.", "gateway"),
    Family("cantata_redis_memory_limit_bytes", "gauge", (), "maxmemory of Redis; 0 if it is not set.", "gateway"),
    Family(
        "cantata_redis_memory_full_seconds",
        "gauge",
        (),
        "Time until Redis is full if it grows as in the last hour; missing if it does not grow.",
        "gateway",
    ),
    Family(
        "cantata_redis_memory_own_estimate_bytes",
        "gauge",
        (),
        "Estimated memory of stored runs and sessions.",
        "gateway",
    ),
)

BY_NAME = {family.name: family for family in FAMILIES}
