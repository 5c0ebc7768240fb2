"""Queries: read-only questions to the code of a workflow in Python, which is replayed here from its recorded history."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from cantata.config.user_code.modules import load_function
from cantata.engine.start import definitions_from
from cantata.errors import ConfigError
from cantata.flows.graph import Spec
from cantata.flows.wire import RUN_OVER
from cantata.flows.workflows import expansion
from cantata.flows.workflows.api import Workflow
from cantata.flows.workflows.conversion import arguments_of
from cantata.flows.workflows.decorator import check_workflow
from cantata.flows.workflows.history import Activation, outcome_of
from cantata.flows.workflows.replay import NonDeterminismError, Replay
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunRecord, StepRecord
from cantata.operation import exits
from cantata.settings import settings
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue


def ask(
    ledger: Ledger, record: RunRecord, step: str | None, name: str, arguments: Mapping[str, JsonValue]
) -> JsonValue:
    """Return the answer of a query of a run's workflow, as far as that is recorded. `step` names one of several workflows.

    Without `step` the outermost workflow answers; if that has no such query, the only other one that has it.

    Raises ConfigError for an unknown workflow or query, and wrong arguments; CodeMismatchError for code that does not follow the history;
    StepError for code that cannot be imported or fails.
    """
    first, *others = _workflows_of(record, step)
    try:
        return _ask(ledger, record, first, name, arguments)
    except ConfigError as error:
        if error.code != "unknown_query" or not others:
            raise
        answers = {}
        for each in others:
            with suppress(ConfigError):
                answers[_base(each)] = _ask(ledger, record, each, name, arguments)
        if len(answers) == 1:
            return next(iter(answers.values()))
        if answers:
            names = ", ".join(map(repr, answers))
            raise ConfigError(
                f"several workflows of run {record.run_id!r} have the query {name!r}; name the step of one: {names}"
            ) from error
        raise


def _ask(
    ledger: Ledger, record: RunRecord, newest: StepRecord, name: str, arguments: Mapping[str, JsonValue]
) -> JsonValue:
    """Return the answer of a query of one workflow, whose newest recorded advance is `newest`."""
    run_id, reader = record.run_id, ledger.reader
    root, workflow = _root(newest), str(newest.spec.params["workflow"])
    ids = [expansion.advance_id(root, number) for number in range(_number(newest.spec, "advance") + 1)]
    advances = reader.records(run_id, ids)
    last = advances[ids[-1]].info.get(expansion.LAST_ACTIVATION)
    history = [
        Activation.model_validate(each)
        for each in (*(advances[one].output for one in ids[:-1]), last or advances[ids[-1]].output)
    ]
    definitions = definitions_from(ledger.runs.definitions(run_id, record.definitions))
    replay, reference = Replay(run_id, definitions, history, root), definitions.workflows[workflow].function
    received = sorted(replay.received)
    found = reader.outcomes(run_id, [expansion.step_id(root, replay.commands[index]) for index in received])
    outcomes = {index: outcome_of(*each) for index, each in zip(received, found, strict=True)}
    function = _load(reference, definitions.folder)

    def answer() -> JsonValue:
        try:
            with exits.contained(f"workflow {workflow!r}", code="query_failed"):
                given = arguments_of(function, history[0].input)
                replay.restore(lambda: function(Workflow(replay), **given), outcomes, ended=last is not None)
                return replay.ask(name, arguments)
        except NonDeterminismError as error:
            raise error.mismatch(workflow, reference) from error
        finally:
            replay.discard()

    with ThreadPoolExecutor(
        1, thread_name_prefix="cantata-query"
    ) as thread:  # the caller's may have an event loop, and does I/O
        return thread.submit(answer).result()


def _workflows_of(record: RunRecord, step: str | None) -> list[StepRecord]:
    """Return the newest recorded advance of each workflow of a run, the outermost one first; only that of `step`, if it is given."""
    done = [each for each in record.steps.values() if each.spec.kind == "workflow.advance" and each.state == "done"]
    bases = sorted({_base(each) for each in done})
    found = [each for each in bases if step in (None, each) or each.endswith(f"/{step}")]
    if not bases and record.status not in RUN_OVER:
        raise ConfigError(
            f"no workflow in Python of run {record.run_id!r} has been recorded yet; ask again", code="not_begun"
        )
    if not bases:
        raise ConfigError(
            f"run {record.run_id!r} has no workflow in Python, or none that has begun", code="unknown_workflow"
        )
    if not found:
        raise ConfigError(
            f"no workflow of run {record.run_id!r} has the step {step!r}{did_you_mean(str(step), bases)}",
            code="unknown_step",
        )
    if len(found) > 1 and step is not None:
        raise ConfigError(
            f"several workflows of run {record.run_id!r} have the step {step!r}; name one: {', '.join(map(repr, found))}"
        )
    newest = dict[str, StepRecord]()
    for each in sorted(done, key=lambda each: (_number(each.spec, "continuation"), _number(each.spec, "advance"))):
        newest[_base(each)] = each
    return [newest[base] for base in sorted(found, key=lambda base: (base.count("/"), base))]


def _root(advance: StepRecord) -> str:
    return str(advance.spec.params.get("root") or advance.step_id)


def _base(advance: StepRecord) -> str:
    return str(advance.spec.params.get("base") or _root(advance))


def _number(spec: Spec, name: str) -> int:
    return int(str(spec.params.get(name) or 0))


def _load(reference: str, folder: str | None) -> Callable[..., Any]:
    """Return the function of a workflow, from the folder of its configuration if that is here, else from this one, or as installed."""
    here = folder if folder and Path(folder).is_dir() else str(Path.cwd())
    if settings().app:
        from cantata.engine.dispatch import user_app  # noqa: PLC0415  # a program without an application need not have Celery

        user_app.activate()
    sys.path.insert(0, here)
    try:
        function = load_function(reference, here)
    finally:
        with suppress(ValueError):  # its module may have changed the path
            sys.path.remove(here)
    check_workflow(function, reference)
    return function
