"""The commands of `submit runs`: read runs that were submitted before, cancel and retry them, and send them signals."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
from rich.console import Console

from cantata.client.records import (
    FORKED_AT,
    FORKED_FROM,
    RunRecord,
    RunSummary,
    StepRecord,
    at_least,
    describe_mixed,
    describe_request,
    duration_ms,
    name_of,
    of_step,
    shown_state,
    state_of,
    wait_options,
)
from cantata.client.runs import MAX_LISTED, ChainRun, TurnRun, unknown_wait
from cantata.client.view import RunView
from cantata.errors import ConfigError, UnknownRunError
from cantata.flows.events import RunAccepted, RunCancelling, RunClosed
from cantata.flows.graph import is_named
from cantata.flows.json_schemas import value_faults
from cantata.flows.wire import RUN_OVER
from cantata.surfaces.cli.connection import ServiceConnection, has_succeeded, print_note
from cantata.surfaces.cli.main import FAILED, INTERRUPTED, INVALID
from cantata.surfaces.cli.options import json_of
from cantata.surfaces.cli.views import live_view, plain_view
from cantata.text import text_format
from cantata.values import JsonValue, as_text

MAX_ROWS = 1000  # of a tree that is printed once
WIDTH = 160  # columns without a terminal
CAN_RETRY = RUN_OVER - {"succeeded"}
CANCELLED = ("cancelling", "cancelled")
SIGNAL_STATUSES = {"taken": 0, "kept": 0, "unclear": INVALID}
"""Outcome of a signal → exit status; any other fails."""


def list_runs(connection: ServiceConnection, limit: int, *, behind: str | None, **filters: Any) -> int:
    """Print at most `limit` runs, the newest first, from after the run `behind`."""
    found = connection.runs.newest(limit, behind=behind, **filters)
    if connection.as_json:
        click.echo(json.dumps([_summary_json(run) for run in found], ensure_ascii=False))
    elif not found:
        print_note("no run matches" if behind or any(filters.values()) else "no runs are kept here")
    rows = [("run", "status", "submitted", "duration", "what")] if found and not connection.as_json else []
    for run in found if rows else ():
        began = text_format.moment(run.created_at)
        took = text_format.duration(round(((run.closed_at or run.now) - run.created_at) * 1000))
        notes = [
            f"stopped: {text_format.line(run.stopped, 60)}" if run.stopped else "",
            f"retried as {run.retried_as}" if run.retried_as else "",
        ]
        what = "  ".join(filter(None, [text_format.line(run.title, 60), text_format.usage(run.usage), *notes]))
        what = text_format.clean(run.unreadable) or what
        rows.append(
            (run.run_id, "unreadable" if run.unreadable else text_format.state_label(run.state), began, took, what)
        )
    for line in text_format.columns(rows):
        click.echo(line)
    return 0


def show(connection: ServiceConnection, run_id: str) -> int:
    """Print a run with its steps, as they are now."""
    run = connection.runs.find(run_id)
    record = run.record(None if connection.as_json else ())
    if connection.as_json:
        steps = [_step_json(step) for step in record.steps.values()]
        shown = {
            **_record_json(record),
            "error": record.error and record.error.model_dump(),
            "request": json.loads(record.request),
        }
        click.echo(
            json.dumps({**shown, "result": run.so_far().model_dump(mode="json"), "steps": steps}, ensure_ascii=False)
        )
        return 0
    lines = {
        step_id: str(step.spec.params["line"]) for step_id, step in record.steps.items() if "line" in step.spec.params
    }
    view = run.view(max_usages=MAX_ROWS).with_lines(lines)
    tree = live_view.render(view, record.now_ms, max_rows=MAX_ROWS)
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(tree)
    _print_acts(view)
    if origin := record.labels.get(FORKED_FROM):
        step = record.labels.get(FORKED_AT)
        print_note(
            f"forked from run {origin}" + (f" at step {step!r}" if step else ", to execute its unfinished steps")
        )
    if record.retried_as:
        print_note(f"retried as run {record.retried_as}")
    for each in record.webhook_runs:
        with suppress(UnknownRunError):  # of a run that goes on for days, the first ones have expired
            posting = connection.runs.find(each).record(())
            print_note(f"webhook: {describe_request(posting)}: {posting.status} (submit runs show {each})")
    if mixed := describe_mixed(record.code):
        print_note(f"steps ran with different versions of the code: {mixed}")
    if record.error:
        print_note(f"error: {text_format.clean(record.error.message)} ({record.error.code})")
    if record.status in RUN_OVER:
        print_note(f"for its result: submit runs result {run_id}")
    return 0


def _print_acts(view: RunView) -> None:
    """Print who acted on a run, and when."""
    for event in view.acts:
        match event:
            case RunAccepted():
                did = f"forked from {event.forked_from}"
            case RunClosed() | RunCancelling():
                did = "cancelled"
            case _:
                did = " ".join(filter(None, [event.type, event.step]))
        print_note(f"{text_format.clock(event.at_ms)} {text_format.line(f'{did} by {event.author}')}")


def follow(connection: ServiceConnection, run_id: str, since: int | None) -> int:
    """Show a run until it is over, and return its exit status."""
    run = connection.runs.find(run_id)
    if not connection.as_json:
        return connection.watch(run, since=since)
    try:
        for event in run.log(since):
            click.echo(event.model_dump_json())
    except KeyboardInterrupt:
        connection.print_detached(run_id, "interrupted")
        return INTERRUPTED
    return 0 if has_succeeded(run.so_far()) else FAILED


def logs(connection: ServiceConnection, run_id: str, *, follow: bool, step: str | None, level: str | None) -> int:
    """Print the log lines of a run."""
    run = connection.runs.find(run_id)
    kept, names = connection.runs.logs(run_id), run.names()
    lines = found = 0
    try:
        for line in kept.follow() if follow else kept.read():
            lines += 1
            if (step is None or of_step(line, step)) and (level is None or at_least(line, level)):
                found += 1
                if connection.as_json:
                    click.echo(line.model_dump_json(exclude_none=True))
                else:
                    click.echo(plain_view.format_line(line, names.with_step(line.step)))
    except KeyboardInterrupt:
        return INTERRUPTED
    if not connection.as_json:
        _print_acts(run.view(max_usages=1))
    if dropped := kept.dropped():
        print_note(f"{dropped} older lines were dropped")
    elif lines and not found:
        print_note(
            f"none of the {lines} log lines of run {run_id} is of this step and level; omit --step and --level to see all"
        )
    elif not lines:
        print_note(f"run {run_id} has no log lines; `submit runs follow {run_id}` shows its events")
    return 0


def result(connection: ServiceConnection, run_id: str, timeout_s: float | None) -> int:
    """Print the result of a run when it is over, or its result so far after `timeout_s`."""
    run = connection.runs.find(run_id)
    for step_id in run.waiting_steps()[:MAX_LISTED]:
        print_note(f"it waits for a signal: submit runs signal {run_id} {step_id} VALUE")
    try:
        return connection.print_result(run, timeout_s)
    except KeyboardInterrupt:
        connection.print_detached(run_id, "interrupted")
        return INTERRUPTED


def export(connection: ServiceConnection, run_id: str) -> int:
    """Print a run as a recording."""
    run = connection.runs.find(run_id)
    status = run.status()
    for piece in run.export():
        click.echo(piece, nl=False)
    if status not in RUN_OVER:
        print_note(f"run {run_id} is {status}: this is the run so far")
    return 0


def choose(
    connection: ServiceConnection, verb: str, filters: Mapping[str, Any], *, yes: bool, again: bool = False
) -> Sequence[str]:
    """Return the runs that filters leave and that can be cancelled or retried, the oldest first, after a question."""
    is_retry = verb == "Retry"
    found = [
        run
        for run in connection.runs.newest(None, **filters)
        if (run.status in CAN_RETRY and (again or not run.retried_as) if is_retry else run.status not in RUN_OVER)
    ]
    if not found:
        print_note("no run matches that can be retried" if is_retry else "no open run matches")
    confirm(verb, found, yes=yes)
    return [run.run_id for run in found[::-1]]


def choose_waiting(connection: ServiceConnection, step: str, filters: Mapping[str, Any], *, yes: bool) -> Sequence[str]:
    """Return the runs that filters leave and in which a step waits, the oldest first, after a question."""
    found = [
        run
        for run in connection.runs.newest(None, **filters)
        if run.status not in RUN_OVER
        and any(is_named(each, step) for each in connection.runs.find(run.run_id).waiting_steps())
    ]
    if not found:
        print_note(f"no open run matches in which a step {step!r} waits")
    confirm("Signal", found, yes=yes)
    return [run.run_id for run in found[::-1]]


def confirm(verb: str, found: Sequence[RunSummary], *, yes: bool) -> None:
    """Tell how many runs were chosen, the newest and the oldest of them, and ask, unless the answer is known."""
    if not found:
        return
    number = text_format.counted(len(found), "run")
    ends = {"the newest ": found[0], "the oldest ": found[-1]} if len(found) > 1 else {"": found[0]}
    named = (
        f"{name}{text_format.line(run.title, 60) or run.run_id!r}, submitted {text_format.moment(run.created_at)}"
        for name, run in ends.items()
    )
    print_note(f"{number}: {'; '.join(named)}")
    if not yes:
        click.confirm(f"{verb} {number}?", abort=True, err=True)


def cancel(connection: ServiceConnection, run_ids: Sequence[str]) -> int:
    """Cancel runs; none if one of them is unknown."""
    exit_status = 0
    for run in [connection.runs.find(run_id, may_be_unreadable=True) for run_id in dict.fromkeys(run_ids)]:
        status = run.cancel()
        if connection.as_json:
            click.echo(json.dumps({"run_id": run.run_id, "status": status}))
        else:
            print_note(
                f"run {run.run_id} is {status}"
                if status in CANCELLED
                else f"run {run.run_id} was over already: {status}"
            )
        exit_status = exit_status if status in CANCELLED else FAILED
    return exit_status


def retry(connection: ServiceConnection, run_ids: Sequence[str], *, again: bool, detach: bool) -> int:
    """Retry runs, all before the first is watched; one that cannot be retried does not keep the others from it."""
    started, status = [], 0
    for run_id in dict.fromkeys(run_ids):
        try:
            started.append(_retry(connection, run_id, again=again))
        except (ConfigError, UnknownRunError) as error:
            if len(run_ids) == 1:
                raise
            print_note(f"run {run_id} is not retried: {error}")
            status = INVALID
    for run in started:
        ended = connection.detach(run) if detach else connection.watch(run)
        if ended == INTERRUPTED:
            return ended
        status = max(status, ended)
    return status


def _retry(connection: ServiceConnection, run_id: str, *, again: bool) -> TurnRun | ChainRun:
    later = connection.runs.find(run_id).record(()).retried_as
    if later and not again:
        raise ConfigError(
            f"run {run_id} was retried as {later}; see `submit runs show {later}`, or retry it once more with --again"
        )
    return connection.runs.rerun(run_id, key=f"retry after {later}")  # two at once are the same run


def signal(connection: ServiceConnection, run_id: str, step: str, text: str, by: str) -> int:
    """Send a waiting step its value, as the author `by`."""
    answer = connection.runs.signal(run_id, step, _signal_value(connection, run_id, step, text), by=by)
    if connection.as_json:
        click.echo(json.dumps({"run_id": run_id, "step": step, "signal": answer.outcome}))
    else:
        print_note(answer.message)
    return SIGNAL_STATUSES.get(answer.outcome, FAILED)


def _signal_value(connection: ServiceConnection, run_id: str, step: str, text: str) -> JsonValue:
    """Return a text as the value of a waiting step: JSON, or itself where only that fits the step's schema.

    Raises UnknownRunError for a text that is not JSON if other steps wait, BadParameter for another one.
    """
    run = connection.runs.find(run_id)
    waiting = run.waiting_steps()
    named = [step_id for step_id in waiting if is_named(step_id, step)]
    schemas = (
        [wait_options(found.spec.params).answer_schema for found in run.steps(named).values()]
        if len(named) == 1
        else []
    )

    def fits(value: JsonValue) -> bool:
        return any(schema is not None and not value_faults(value, schema, most=1) for schema in schemas)

    try:
        value: JsonValue = json_of(text)
    except click.BadParameter:
        if fits(text):
            return text
        if waiting and not named:
            raise unknown_wait(run, step) from None
        raise
    return text if fits(text) and not fits(value) else value


def query(
    connection: ServiceConnection, run_id: str, name: str, step: str | None, given: Mapping[str, JsonValue]
) -> int:
    """Print the answer of a query of a workflow in Python."""
    answer = connection.runs.find(run_id).ask(name, given, step_id=step)
    click.echo(json.dumps(answer, ensure_ascii=False) if connection.as_json else text_format.clean(as_text(answer)))
    return 0


def _to_json(run: RunSummary | RunRecord, asked: str, created_at_ms: int, duration_ms: int) -> dict[str, JsonValue]:
    return {
        "run_id": run.run_id,
        "status": run.status,
        "state": state_of(run.status, run.failures),
        "failures": run.failures,
        "kind": run.kind,
        "asked": asked,
        "created_at_ms": created_at_ms,
        "duration_ms": duration_ms,
        "usage": run.usage.model_dump(),
        "labels": dict(run.labels),
        "retried_as": run.retried_as or None,
    }


def _summary_json(run: RunSummary) -> dict[str, JsonValue]:
    created_at_ms = round(run.created_at * 1000)
    asked = _to_json(run, run.title, created_at_ms, round((run.closed_at or run.now) * 1000) - created_at_ms)
    return {**asked, "stopped": run.stopped or None, "unreadable": run.unreadable or None}


def _record_json(run: RunRecord) -> dict[str, JsonValue]:
    return {
        **_to_json(run, describe_request(run), run.created_at_ms, duration_ms(run)),
        "code": [*run.code],
        "webhook_runs": [*run.webhook_runs],
    }


def _step_json(step: StepRecord) -> dict[str, JsonValue]:
    return {
        **step.info,
        "step": step.step_id,
        "name": name_of(step.step_id, step.spec.work),
        "state": shown_state(step.state, step.info),
        "kind": step.spec.kind,
        "work": step.spec.work,
        "queue": step.spec.queue,
        "attempt": step.attempt,
        "failures": step.failures,
        "crashes": step.crashes,
        "output": step.output,
        **{name: step.spec.params[name] for name in ("asks", "line") if name in step.spec.params},
    }
