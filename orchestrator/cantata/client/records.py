"""The values that the client's methods take and return, and their words for people: for surfaces, which import no storage."""

from cantata.engine.fleet.code_versions import describe_mixed, find_mixed
from cantata.engine.fleet.holds import PausedQueue
from cantata.engine.fleet.load import USUAL_QUEUES, FleetLoad, QueueLoad
from cantata.engine.fleet.lost_workers import LostWorker
from cantata.engine.fleet.registry import CLOCK_OFF_S, Worker
from cantata.engine.limits.daily_costs import MAX_DAYS, DayCost
from cantata.engine.limits.limiter import PausedModel
from cantata.features.batches.batch_feed import BatchFeed
from cantata.features.batches.batch_store import BatchInfo, BatchState, BatchTarget
from cantata.features.batches.batches import Batches, batch_target
from cantata.features.batches.rows import BatchPage, BatchRow, Row, TextRow
from cantata.features.forks.fork_requests import FORKED_AT, FORKED_FROM
from cantata.features.inbox.answers import SignalAnswer, labels_of, outcomes, split_id
from cantata.features.inbox.inbox import wait_options
from cantata.features.memory.memory_store import DEFAULT, MemoryStore
from cantata.features.schedules.schedule_store import ScheduleRecord
from cantata.features.schedules.schedules import Schedules, describe
from cantata.ledger.parked import Action, ParkedItem
from cantata.ledger.records import RunRecord, StepRecord
from cantata.ledger.redis.clock import now
from cantata.ledger.runs.listing import MAX_SEARCH_CHARS, RunCounts, RunList
from cantata.ledger.runs.log_store import at_least, of_step
from cantata.ledger.runs.results import (
    REFUSALS,
    answer_text,
    describe_request,
    duration_ms,
    refused_chain,
    refused_turn,
)
from cantata.ledger.runs.step_names import name_of
from cantata.ledger.runs.summaries import RunSummary, shown_state, state_of

__all__ = [
    "CLOCK_OFF_S",
    "DEFAULT",
    "FORKED_AT",
    "FORKED_FROM",
    "MAX_DAYS",
    "MAX_SEARCH_CHARS",
    "REFUSALS",
    "USUAL_QUEUES",
    "Action",
    "BatchFeed",
    "BatchInfo",
    "BatchPage",
    "BatchRow",
    "BatchState",
    "BatchTarget",
    "Batches",
    "DayCost",
    "FleetLoad",
    "LostWorker",
    "MemoryStore",
    "ParkedItem",
    "PausedModel",
    "PausedQueue",
    "QueueLoad",
    "Row",
    "RunCounts",
    "RunList",
    "RunRecord",
    "RunSummary",
    "ScheduleRecord",
    "Schedules",
    "SignalAnswer",
    "StepRecord",
    "TextRow",
    "Worker",
    "answer_text",
    "at_least",
    "batch_target",
    "describe",
    "describe_mixed",
    "describe_request",
    "duration_ms",
    "find_mixed",
    "labels_of",
    "name_of",
    "now",
    "of_step",
    "outcomes",
    "refused_chain",
    "refused_turn",
    "shown_state",
    "split_id",
    "state_of",
    "wait_options",
]  # fmt: skip
