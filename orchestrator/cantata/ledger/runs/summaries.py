"""Summaries of runs, for lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import cast, get_args
from urllib.parse import unquote

from pydantic import Field

from cantata.flows.graph import ShownState, StepState
from cantata.flows.wire import RUN_OVER, RunState, RunStatus
from cantata.ledger.encoding import shown_status
from cantata.ledger.redis.keys import webhook_runs_of
from cantata.ledger.redis.records import check_script, readable, remedy_for
from cantata.ledger.refused_steps import FRESH_S
from cantata.values import JsonValue, Unreadable, Usage, Value

MAX_ESCAPE_CHARS = 6  # characters, such as \u00e4
REQUEST_BYTES = 600  # of a request that are read: a title is in them
MAX_TITLE_CHARS = 120  # characters
FIELDS = (
    "kind", "status", "created_at", "closed_at", "error", "input_tokens", "output_tokens", "cost_usd", "model_calls", "tool_calls",
    "labels", "session", "count", "left", "failures", "code", "cancelling", "waits", "time_left", "deliveries",
    "retried_as", "refused",
)  # fmt: skip

_TEXT = re.compile(r'"text":"((?:[^"\\]|\\.)*)')
_CHAIN = re.compile(r'"chain_id":"((?:[^"\\]|\\.)*)"')
_TARGET = re.compile(r'"(?:team|agent|workflow)":"((?:[^"\\]|\\.)*)"')  # never within a text, whose quotes are escaped
_NODE = re.compile(r'"node_id":"((?:[^"\\]|\\.)*)"')
_STATUSES = frozenset(get_args(RunStatus))
_MADE_UP = re.compile(r"[0-9a-f]{8}")


class RunSummary(Value):
    """A run in a list."""

    run_id: str = Field(description="the run")
    kind: str = Field(description="turn or chain; webhook: it posts to one")
    status: RunStatus = Field(description="its status")
    failures: int = Field(default=0, description="steps of its plan, and items of its maps, that failed")
    state: RunState = Field(default="accepted", description="its status for display")
    created_at: float = Field(description="when it was accepted, Redis's clock, seconds since 1970")
    closed_at: float | None = Field(default=None, description="when it ended")
    now: float = Field(default=0.0, description="Redis's clock when it was read")
    title: str = Field(
        default="", description="the request in a line: the text of a turn, the name of a chain, or else its nodes"
    )
    target: str = Field(
        default="", description="the team, agent, chain or workflow that it runs; empty for a chain without a name"
    )
    labels: dict[str, str] = Field(default_factory=dict, description="the labels given when it was submitted")
    session: str | None = Field(default=None, description="the conversation that a turn belongs to")
    error: JsonValue = Field(default=None, description="why it failed: {code, message, step}")
    usage: Usage = Field(default_factory=Usage, description="what it consumed")
    count: int = Field(default=0, description="its steps so far")
    code: tuple[str, ...] = Field(
        default=(), description="the user's modules that its steps ran with, as `module@digest`"
    )
    webhook_runs: tuple[str, ...] = Field(
        default=(), description="the runs that post its events to webhooks, the first ones"
    )
    retried_as: str = Field(default="", description="the newest run that retries it")
    stopped: str = Field(
        default="", description="why workers refused a step of it in the last minute; empty if it goes on"
    )
    left: int = Field(default=0, description="its open steps; of an ended run, at its end")
    unreadable: Unreadable = ""


def summary_of(run_id: str, request: str, values: Iterable[str | None], now: float) -> RunSummary:
    """Return the summary of a run, from the values of FIELDS and the beginning of its request."""
    row = dict(zip(FIELDS, values, strict=True))
    status, failures = shown_status(row), int(row["failures"] or 0)
    refused_at, _, refusal = (row["refused"] or "0").partition(" ")
    is_stopped = status not in RUN_OVER and now - int(refused_at) / 1000 < FRESH_S
    return RunSummary(
        run_id=run_id,
        kind=row["kind"] or "",
        status=status,
        failures=failures,
        state=state_of(status, failures),
        created_at=int(row["created_at"] or 0) / 1000,
        closed_at=int(row["closed_at"]) / 1000 if row["closed_at"] else None,
        now=now,
        title=title_of(row["kind"] or "", request[:REQUEST_BYTES]),
        target=target_of(row["kind"] or "", request),
        labels=json.loads(row["labels"] or "{}"),
        session=unquote(row["session"].partition("/")[2]) if row["session"] else None,
        error=json.loads(row["error"] or "{}").get("error"),
        usage=Usage(
            input_tokens=int(row["input_tokens"] or 0),
            output_tokens=int(row["output_tokens"] or 0),
            cost_usd=float(row["cost_usd"]) if row["cost_usd"] else None,
            model_calls=int(row["model_calls"] or 0),
            tool_calls=int(row["tool_calls"] or 0),
        ),
        code=tuple((row["code"] or "").split()),
        webhook_runs=webhook_runs_of(run_id, int(row["deliveries"] or 0)),
        retried_as=row["retried_as"] or "",
        stopped=str(json.loads(refusal)["message"]) if is_stopped else "",
        count=int(row["count"] or 0),
        left=int(row["left"] or 0),
    )


def listed_summary_of(run_id: str, at_ms: int, request: str, values: Sequence[str | None], now: float) -> RunSummary:
    """Return the summary of a run for a list. One that cannot be read has the status that it has if that can be read, else `failed`."""

    def read() -> RunSummary:
        if len(values) < len(FIELDS):
            check_script(values[0] or "")
        return summary_of(run_id, request, values, now)

    def row(why: str) -> RunSummary:
        known = dict(zip(FIELDS, values, strict=False)) if len(values) == len(FIELDS) else {}
        status = cast(RunStatus, known["status"] if known.get("status") in _STATUSES else "failed")
        return RunSummary(
            run_id=run_id,
            kind=known.get("kind") or "",
            status=status,
            state=status,
            created_at=at_ms / 1000,
            now=now,
            title=_line(why),
            unreadable=why,
        )

    return readable(read, row, remedy=remedy_for(run_id))


def state_of(status: RunStatus, failures: int) -> RunState:
    """Return the status of a run for display: one that succeeded though steps failed is `succeeded_with_failures`."""
    return "succeeded_with_failures" if status == "succeeded" and failures else status


def shown_state(state: str, info: Mapping[str, JsonValue]) -> ShownState:
    """Return the state of a step for display: a wait that ended by its own timeout is `timed_out`; a dispatched or sleeping step runs."""
    if state == "dispatched" or (state == "waiting_signal" and "sleeps_until_ms" in info):
        return "running"
    return "timed_out" if state == "done" and info.get("timed_out") else cast(StepState, state)


def title_of(kind: str, request: str) -> str:
    """Return the request in a line, from the beginning of its JSON text, which may be cut anywhere."""
    if kind != "chain":
        match = _TEXT.search(request)
        return _line(unescaped(match[1]) if match else "")
    return _line(target_of(kind, request) or ", ".join(map(unescaped, _NODE.findall(request))))


def target_of(kind: str, request: str) -> str:
    """Return the name of the team, agent, chain or workflow of a request; empty if it has none. Of a long turn, its end is needed too."""
    match = (_CHAIN if kind == "chain" else _TARGET).search(request) if kind != "webhook" else None
    name = unescaped(match[1]) if match else ""
    return "" if kind == "chain" and _MADE_UP.fullmatch(name) else name


def unescaped(text: str) -> str:
    """Decode a JSON string without its quotes; an escape that was cut is left out."""
    for end in range(len(text), max(0, len(text) - MAX_ESCAPE_CHARS), -1):
        with suppress(ValueError):
            return str(json.loads(f'"{text[:end]}"', strict=False))
    return ""


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1]}…"
