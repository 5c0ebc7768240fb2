"""Answers to steps that wait for a person: their checks before a run gets them, and the outcomes of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from cantata.errors import CantataError, ConfigError, Fault
from cantata.features.inbox.inbox import wait_options
from cantata.flows.json_schemas import Allowance, value_faults
from cantata.flows.waits import Answer
from cantata.flows.wire import AnswerOutcome, FaultInfo
from cantata.text.patterns import SearchTime
from cantata.values import JsonValue

MAX_FAULTS = 20  # of one answer that are reported
MAX_EVALUATIONS = 50_000  # of one answer: 0.05 s, since one request may have a thousand of them
SEARCH_S = 0.1  # processor time of all patterns of one answer


class SignalAnswer(NamedTuple):
    """The answer to a signal."""

    outcome: str
    """taken, kept, over, closed, unclear, full or not_allowed."""
    message: str


def split_id(item_id: str) -> tuple[str, str]:
    """Return the run and the step in the id of an item of the inbox. Raises ConfigError."""
    run_id, slash, step = item_id.partition("/")
    if not (run_id and slash and step):
        raise ConfigError(
            f"{item_id[:100]!r} is no id of the inbox; it is RUN/STEP, as `submit inbox list` shows it", source="id"
        )
    return run_id, step


def labels_of(texts: Iterable[str]) -> dict[str, str]:
    """Return labels from texts `name=value`. Raises ConfigError."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals):
            raise ConfigError(f"expected a label as name=value, not {(name + equals + value)[:100]!r}", source="label")
    return {name: value for name, _, value in pairs}


def check_answer(
    value: JsonValue,
    groups: Collection[str] | None,
    step: str,
    params: Mapping[str, JsonValue],
    info: Mapping[str, JsonValue],
) -> str:
    """Return 'not_allowed' if a waiting step lists none of `groups`, else ''. Raises ConfigError for a value that its schema refuses."""
    options = wait_options(params)
    who = options.answerers(is_escalated="escalated_at_ms" in info)
    if groups is not None and who is not None and not {*groups}.intersection(who):
        return "not_allowed"
    if options.answer_schema is not None:
        allowance = Allowance(MAX_EVALUATIONS, SearchTime(SEARCH_S))
        found = value_faults(value, options.answer_schema, most=MAX_FAULTS, allowance=allowance)
        faults = [Fault(each.message, ".".join(["value", *map(str, each.path)])) for each in found]
        if faults:
            raise ConfigError(faults, source=f"answer to {step!r}", code="bad_answer")
    return ""


def outcomes(answers: Iterable[Answer], send: Callable[[Answer], SignalAnswer]) -> list[AnswerOutcome]:
    """Send answers one by one; return the outcome of each, in order: one that is refused stops no other."""
    return [_outcome(answer, send) for answer in answers]


def _outcome(answer: Answer, send: Callable[[Answer], SignalAnswer]) -> AnswerOutcome:
    try:
        sent = send(answer)
    except CantataError as error:
        faults = [FaultInfo(message=each.message, where=each.where) for each in getattr(error, "faults", ())]
        return AnswerOutcome(
            id=answer.id, outcome=getattr(error, "code", "unknown_run"), message=str(error), faults=faults
        )
    return AnswerOutcome(id=answer.id, outcome=sent.outcome, message=sent.message)
