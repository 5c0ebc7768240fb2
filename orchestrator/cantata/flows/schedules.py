"""Schedules: when runs are started without a caller, and what they execute."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, Strict, field_validator, model_validator

from cantata.bounds import DAY_S, MAX_DURATION_S
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.text.text_format import counted
from cantata.values import BoundedObject, Instant, Labels, Unreadable, Value, checked_name

Overlap = Literal["skip", "queue", "cancel_previous", "allow"]

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
MAX_TEXT = (
    1000  # characters of a duration or cron expression; one that lists all minutes, hours, days and months has 400
)
_FIELDS = 5  # of a cron expression; the library reads a sixth as seconds


ScheduleName = Annotated[str, AfterValidator(partial(checked_name, "schedule"))]
"""A name that also occurs in Redis keys and addresses."""


def _seconds(given: object) -> object:
    """Return the seconds of a duration such as `1h30m`; anything else as it is."""
    if not isinstance(given, str):
        return given
    if len(given) > MAX_TEXT:
        raise ValueError(f"a duration has at most {MAX_TEXT:,} characters, such as '90s', '10m' or '1h30m'")
    text = given.replace(" ", "")
    if not text or _DURATION.sub("", text):
        raise ValueError(f"expected a duration such as '90s', '10m' or '1h30m', not {given!r}")
    return sum(float(number) * UNITS_S[unit] for number, unit in _DURATION.findall(text))


Seconds = Annotated[float, Strict(), BeforeValidator(_seconds, json_schema_input_type=float | str)]
"""A number of seconds, also written as `90s`, `10m`, `1h30m` or `2d`."""


class Schedule(Value):
    """The times at which runs start, and the turn, chain or workflow that they execute."""

    cron: str | None = Field(
        None, description="five fields with names, such as `0 7 * * mon-fri`: minute, hour, day, month, weekday"
    )
    every: Seconds | None = Field(
        None,
        ge=1,
        le=MAX_DURATION_S,
        description="seconds, or a duration such as `10m`; counted from 1970, so `10m` is at :00, :10, ...",
    )
    at: Instant | None = Field(None, description="one date and time, such as `2030-05-01T09:00`")
    timezone: str = Field("UTC", description="time zone of `cron`, of an `at` without one, and of the placeholders")
    turn: TurnRequest | None = Field(
        None, description="the turn of each run; its text may have placeholders, its session may not"
    )
    chain: str | ChainRequest | None = Field(
        None, description="the chain of each run: its name in the configuration, or a chain request"
    )
    workflow: str | None = Field(
        None, description="the workflow in Python of each run, by its name in the configuration"
    )
    input: BoundedObject = Field(
        default_factory=dict, description="input of the chain or workflow; its texts may have placeholders"
    )
    overlap: Overlap = Field(
        "skip",
        description="while a run of the schedule is open: `skip` the time, `queue` it, `cancel_previous`, or `allow` both to run",
    )
    catch_up: Seconds = Field(
        3600.0,
        ge=10,
        le=365 * DAY_S,
        description="how late a time may still be run, after an outage; later it is missed",
    )
    jitter: Seconds = Field(
        0.0, ge=0, le=DAY_S, description="each time is delayed by a part of this, the same for the same time"
    )
    note: str = Field("", max_length=1000, description="for people")
    webhooks: list[str] = Field(
        default_factory=list, max_length=10, description="webhooks of its runs, as those of a turn"
    )
    labels: Labels = Field(
        default_factory=dict, description="labels of its runs; `tenant` names the tenant that it belongs to"
    )

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"there is no time zone {name!r}; names are such as 'Europe/Berlin', 'America/New_York' or 'UTC'"
            ) from None
        return name

    @field_validator("cron")
    @classmethod
    def _occurs(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if len(text) > MAX_TEXT:
            raise ValueError(f"a cron expression has at most {MAX_TEXT:,} characters")
        if len(text.split()) != _FIELDS:
            raise ValueError(
                f"expected five fields (minute hour day month weekday), such as '0 7 * * mon-fri', not {text!r}"
            )
        try:
            next(CronSim(text, datetime(2024, 1, 1, tzinfo=UTC)))
        except StopIteration:
            raise ValueError(f"no date matches {text!r}") from None
        except CronSimError as error:
            raise ValueError(f"{text!r} is no cron expression: {str(error).lower()}") from None
        return text

    @model_validator(mode="after")
    def _has_one_of_each(self) -> Schedule:
        for names in (("cron", "every", "at"), ("turn", "chain", "workflow")):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) != 1:
                found = f"has {' and '.join(map(repr, given))}" if given else "has none"
                raise ValueError(f"a schedule has one of {', '.join(map(repr, names))}; this one {found}")
        if self.turn and "{" in (self.turn.session or ""):
            raise ValueError(
                "the session of a scheduled turn is the same at all times; write a name without placeholders"
            )
        if self.turn and self.input:
            raise ValueError("'input' belongs to a chain or workflow; a turn has its 'text'")
        return self

    @property
    def zone(self) -> ZoneInfo:
        """Its time zone."""
        return ZoneInfo(self.timezone)

    @property
    def at_ms(self) -> int | None:
        """The one time of an `at`, in milliseconds since 1970; one that a clock change skips is after the change."""
        if self.at is None:
            return None
        moment = self.at if self.at.tzinfo else self.at.replace(tzinfo=self.zone)
        return round(moment.timestamp() * 1000)

    @property
    def tenant(self) -> str:
        """The tenant that it and its runs belong to."""
        return self.labels.get("tenant", "")

    def timing(self) -> str:
        """Return the fields that decide its times, as JSON."""
        return self.model_dump_json(include={"cron", "every", "at", "timezone", "jitter"})


def format_seconds(seconds: float) -> str:
    """Return a duration as a schedule has it, such as `1h30m`."""
    left, parts = timedelta(seconds=seconds), []
    for unit in ("d", "h", "m"):
        count, left = divmod(left, timedelta(seconds=UNITS_S[unit]))
        parts += [f"{count}{unit}"] if count else []
    rest = left.total_seconds()
    return "".join([*parts, *([f"{rest:g}s"] if rest or not parts else [])])


class ScheduledRun(Value):
    """A run that a schedule started. Times are seconds since 1970."""

    run_id: str = Field(description="the run")
    scheduled_at: float = Field(description="its time by the schedule")
    started_at: float | None = Field(description="when it started; null if it has expired")
    status: str = Field(description="its status; empty if it has expired")


class ScheduleView(Value):
    """A schedule for people and programs. Times are seconds since 1970."""

    name: str = Field(description="its name")
    tenant: str = Field(description="its tenant; empty for none")
    state: Literal["active", "paused", "over", "unreadable"] = Field(
        description="`over`: it has no time left; `unreadable`: see there"
    )
    timing: str = Field(description="its times, as text")
    target: str = Field(description="what its runs execute, as text")
    declared_by: Literal["config", "api"] = Field(description="a configuration that was applied, or a call")
    definitions: str = Field(description="the digest of the definitions of its runs")
    pause_note: str = Field(description="why it is paused")
    next_at: list[float] = Field(description="its next times, without jitter")
    fired: int = Field(description="times that were run")
    skipped: int = Field(description="times that were skipped by its overlap")
    missed: int = Field(description="times that were too late to run")
    pending: int = Field(description="times that wait for a run")
    error: str = Field(description="why its last time started no run")
    created_at: float = Field(description="when it was created")
    runs: list[ScheduledRun] = Field(description="its last runs, the newest first")
    schedule: Schedule | None = Field(description="as it was declared; null if that cannot be read")
    unreadable: Unreadable = ""


def describe_timing(schedule: Schedule) -> str:
    """Return the times of a schedule as text."""
    jitter = f", up to {format_seconds(schedule.jitter)} later" if schedule.jitter else ""
    if schedule.every is not None:
        return f"every {format_seconds(schedule.every)}{jitter}"
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone}){jitter}"
    return f"at {datetime.fromtimestamp((schedule.at_ms or 0) / 1000, schedule.zone).isoformat(' ', 'minutes')}{jitter}"


def describe_target(schedule: Schedule) -> str:
    """Return what the runs of a schedule execute, as text."""
    if schedule.turn:
        turn = schedule.turn
        named = next(
            (f" for {kind} {name}" for kind in ("team", "agent", "workflow") if (name := getattr(turn, kind))), ""
        )
        return f"turn{named}{f' in session {turn.session}' if turn.session else ''}: {turn.text}"
    if schedule.workflow is not None:
        return f"workflow {schedule.workflow}"
    name = schedule.chain.chain_id if isinstance(schedule.chain, ChainRequest) else schedule.chain
    if name or not isinstance(schedule.chain, ChainRequest):
        return f"chain {name}"
    return f"chain of {counted(len(schedule.chain.nodes), 'node')}"
