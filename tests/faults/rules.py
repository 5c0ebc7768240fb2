"""What must hold of a run that is over, whatever was done to the processes that worked on it. Pure: each rule reads a past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.faults.journal import Line
from tests.faults.past import Past, Violation
from tests.integration.state.invariants import ENDINGS

CLOCK_S = 0.01  # the ledger's times are whole milliseconds, and a line is written a moment after its time was taken
GIVEN_UP = ("lost", "released", "retry", "refused", "rate_limited")
"""The events that end an attempt and not the step."""

Rule = Callable[[Past], Iterator[Violation]]


def is_answered(past: Past) -> Iterator[Violation]:
    """The run succeeded, with the output that its shape gives."""
    status, expected = past.picture.status, past.told.accepted.expected
    if status != "succeeded":
        under_way = sorted(step for step, cell in past.picture.cells.items() if not cell.is_over)
        found = past.picture.meta.get("error") or f"steps under way: {', '.join(under_way)}"
        yield past.violation("", "the run succeeded", f"it is {status}: {found}")
    elif past.output != expected:
        yield past.violation("", f"the output {expected!r}", repr(past.output))


def has_every_event_once(past: Past) -> Iterator[Violation]:
    """Offsets rise by one from 1; the first event is `accepted`, the last `closed`, and there is no other of either."""
    offsets = [entry for entry, _ in past.picture.log]
    wrong = next((found for number, found in enumerate(offsets, 1) if found != f"0-{number}"), None)
    if wrong:
        yield past.violation(
            "",
            f"offsets 0-1 to 0-{len(offsets)}, without gap or repeat",
            f"{wrong} in place {offsets.index(wrong) + 1}",
        )
    types = [fields["t"] for _, fields in past.picture.log]
    for word, place in (("accepted", 0), ("closed", len(types) - 1)):
        found = [number for number, kind in enumerate(types) if kind == word]
        if found != [place]:
            yield past.violation(
                "", f"the event {word!r} once, at offset {place + 1}", f"it at offsets {[n + 1 for n in found]}"
            )


def has_one_outcome_a_step(past: Past) -> Iterator[Violation]:
    """Each step of a run that succeeded ended once, as its state says, and nothing happened to it afterwards."""
    for step, cell in past.picture.cells.items():
        endings = past.of(step, *ENDINGS)
        if past.picture.status == "succeeded" and (len(endings) != 1 or not cell.is_over):
            told = [(event.type, event.attempt) for event in endings]
            yield past.violation(step, "one outcome", f"{len(endings)}: {told}, and the state {cell.word!r}")
        if endings and (late := [event for event in past.of(step, "started", *GIVEN_UP) if event.seq > endings[0].seq]):
            yield past.violation(
                step,
                "nothing after its outcome",
                f"{late[0].type!r} of attempt {late[0].attempt} at offset {late[0].seq}",
            )


def has_rising_fences(past: Past) -> Iterator[Violation]:
    """Attempts are numbered 1, 2, 3, ...; an outcome is that of the last one."""
    for step, cell in past.picture.cells.items():
        attempts = [event.attempt for event in past.of(step, "started")]
        if attempts != list(range(1, len(attempts) + 1)) or cell.attempt != len(attempts):
            yield past.violation(step, f"attempts 1 to {cell.attempt}, as its state says", f"{attempts} started")
        outcome = past.outcome(step)
        if (
            outcome
            and outcome.attempt is not None
            and attempts
            and outcome.attempt != max(attempt or 0 for attempt in attempts)
        ):
            yield past.violation(
                step, f"the outcome of its last attempt, {attempts[-1]}", f"that of attempt {outcome.attempt}"
            )


def starts_again_for_a_reason_only(past: Past) -> Iterator[Violation]:
    """A step starts once, and again only after its attempt was lost, handed back or failed. So a join fires once."""
    for step in past.picture.cells:
        story = past.of(step, "started", *GIVEN_UP)
        for before, after in pairwise(story):
            if after.type == "started" and before.type == "started":
                yield past.violation(
                    step,
                    f"the end of attempt {before.attempt} before attempt {after.attempt} starts",
                    f"no event between {before.seq} and {after.seq}",
                )
            if after.type != "started" and (before.type != "started" or before.attempt != after.attempt):
                yield past.violation(
                    step,
                    f"{after.type!r} of an attempt that runs",
                    f"it of attempt {after.attempt}, at offset {after.seq}",
                )


def starts_after_its_sources(past: Past) -> Iterator[Violation]:
    """A step that waits for others starts when all of them are over, or one whose edge is alone; a quorum may do without some."""
    first = {step: past.of(step, "started")[0] for step in past.picture.cells if past.of(step, "started")}
    edges = [
        (source, str(edge[0]), len(edge) > 3 and bool(edge[3]))
        for source in past.picture.cells
        for edge in past.picture.edges_of(source)
    ]
    over_at = {source: outcome.seq for source in past.picture.cells if (outcome := past.outcome(source))}
    free = {
        target
        for source, target, alone in edges
        if alone and target in first and source in over_at and over_at[source] < first[target].seq
    }
    for source, target, _ in edges:
        outcome = past.outcome(source)
        started, spec = first.get(target), past.picture.spec(target)
        is_bound = "quorum" not in spec and "deadline_s" not in spec and target not in free
        if started and is_bound and (outcome is None or outcome.seq > started.seq):
            over = f"over at offset {outcome.seq}" if outcome else "not over"
            yield past.violation(
                target,
                f"its source {source} over before it starts",
                f"a start at offset {started.seq}, {source} {over}",
            )


def loses_leases_of_the_dead_only(past: Past) -> Iterator[Violation]:
    """A lease runs out only if its worker was killed or stood still."""
    for step in past.picture.cells:
        began = {event.attempt: event for event in past.of(step, "started")}
        for lost in past.of(step, "lost"):
            since = began[lost.attempt].at if lost.attempt in began else lost.at
            if not past.was_killed(lost.pid) and not past.was_frozen({lost.pid}, since, lost.at):
                yield past.violation(
                    step, "the lease of a live worker kept", f"attempt {lost.attempt} of {lost.worker} lost"
                )


def was_done_as_granted(past: Past) -> Iterator[Violation]:
    """What the journal knows to have started, the ledger does too; and no attempt was done twice."""
    granted = {(step, event.attempt) for step in past.picture.cells for event in past.of(step, "started")}
    for line in past.told.starts:
        if (line.step_id, line.attempt) not in granted:
            yield past.violation(
                line.step_id, "an attempt in the ledger for each in the journal", f"{_words(line)} is unknown to it"
            )
    for (step, attempt), times in Counter((line.step_id, line.attempt) for line in past.told.starts).items():
        if times > 1:
            yield past.violation(step, f"attempt {attempt} done once", f"{times} starts in the journal")


def was_really_done(past: Past) -> Iterator[Violation]:
    """A step of a tool or task that is done was finished, by the attempt whose outcome counts."""
    finished = Counter((line.step_id, line.attempt) for line in past.told.finishes)
    for step in past.done.intersection(past.of_kind("tool.call", "task.call")) - past.taken_over:
        attempt = past.attempt_of_task(step) or past.picture.cells[step].attempt
        if (times := finished[step, attempt]) != 1:
            yield past.violation(
                step, f"one finish of attempt {attempt} in the journal", f"{times}, though its outcome is recorded"
            )


def was_not_done_again(past: Past) -> Iterator[Violation]:
    """No tool starts and no model is asked for a step that is over, save by a process that was frozen meanwhile."""
    for line in past.told.starts:
        yield from _too_late(past, line.step_id, line, _words(line))
    for step, asked in past.asked_by():
        for line in asked:
            yield from _too_late(past, step, line, f"{line.agent} asked")


def _too_late(past: Past, step: str, line: Line, words: str) -> Iterator[Violation]:
    outcome, at = past.outcome(step), line.at
    if outcome is None or at <= outcome.at + CLOCK_S:
        return
    started = past.of(step, "started")
    if not (
        started and past.was_frozen({event.pid for event in started}, started[0].at, at)
    ):  # what a fork took over never started in it
        yield past.violation(step, "nothing done after its outcome", f"{words} {at - outcome.at:.2f} s after it")


def was_never_doubled(past: Past) -> Iterator[Violation]:
    """No attempt of a step starts while a live and moving worker is still at the one before.

    That of a task may: it is published again if who published it died before that was recorded, and after its time.
    """
    finishes = {(line.step_id, line.attempt): line for line in past.told.finishes}
    begun = {(step, event.attempt): event.at for step in past.picture.cells for event in past.of(step, "started")}
    tasks = set(past.of_kind("task.call"))
    for before in past.told.starts:
        attempt = before.step_id, before.attempt
        if (
            before.step_id in tasks
            or attempt not in finishes
            or attempt not in begun
            or past.was_frozen({before.pid}, begun[attempt], finishes[attempt].at)
        ):
            continue
        for after in past.told.starts:
            if after.step_id == before.step_id and after.attempt > before.attempt and after.at < finishes[attempt].at:
                found = f"{_words(after)} at it {finishes[attempt].at - after.at:.2f} s before {_words(before)} had finished"
                yield past.violation(before.step_id, "one attempt at a time", found)


def waits_for_its_task(past: Past) -> Iterator[Violation]:
    """An attempt that was dispatched ends by the word of the user's worker, or when its time is over: nobody of ours can lose it."""
    for step in past.of_kind("task.call"):
        limit_s = float(str(past.picture.spec(step)["timeout_s"]))
        began = {event.attempt: event.at for event in past.of(step, "started")}
        for before, after in pairwise(past.of(step, "dispatched", *GIVEN_UP)):
            if before.type != "dispatched" or before.attempt != after.attempt:
                continue
            took_s = after.at - began.get(after.attempt, before.at)
            if after.type != "retry" or (after.error_code == "timeout" and took_s < limit_s - CLOCK_S):
                found = f"{after.type!r} ({after.error_code}) after {took_s:.2f} s"
                yield past.violation(
                    step, f"attempt {after.attempt} left to the user's worker for {limit_s:g} s", found
                )


def was_asked_as_often_as_tried(past: Past) -> Iterator[Violation]:
    """A model turn that is done asked its model, at most once an attempt; one that a fork took over did not ask it again."""
    for step, asked in past.asked_by():
        attempts, least = past.picture.cells[step].attempt, int(step not in past.taken_over)
        if step in past.done and not least <= len(asked) <= attempts:
            yield past.violation(
                step,
                f"its model asked {least} to {attempts} times, as it had {attempts} attempts",
                f"{len(asked)} times",
            )


def was_asked_for_its_turns_only(past: Past) -> Iterator[Violation]:
    """A model that is asked is shown what the ledger knows: the results of the rounds before a turn of the run, all and once."""
    known = [line for _, asked in past.asked_by() for line in asked]
    for line in past.told.asked:
        if line not in known:
            yield past.violation(
                "", "models asked for turns of the run", f"{line.agent} asked for round {line.round}, which is none"
            )


def was_routed_once_a_decision(past: Past) -> Iterator[Violation]:
    """One step asks the router for a decision, since the suite's router decides at once."""
    for decision, times in Counter(past.decision(step) for step in past.of_kind("team.ask")).items():
        if times > 1:
            yield past.violation("", f"one step that asks the router for decision {decision}", str(times))


def remembers_what_it_was_told(past: Past) -> Iterator[Violation]:
    """What a step had remembered is remembered once, and at most once more for each attempt of it that was lost."""
    kept, began = Counter(map(str, past.remembered)), Counter(line.step_id for line in past.told.starts)
    for step in past.picture.cells:
        if past.picture.spec(step).get("work") != "tools:remember":
            continue
        least = int(step in past.done - past.taken_over)
        if not least <= kept[step] <= max(least, began[step]):
            yield past.violation(step, f"its item remembered {least} to {began[step]} times", str(kept[step]))


def was_charged_as_asked(past: Past) -> Iterator[Violation]:
    """Its budget was charged for each turn that is recorded, and at most once more for each attempt whose reply was lost.

    A call that was cut off is charged with an estimate, which may be more than its model would have told; so is one whose request left and
    did not come to the model whole.
    """
    least = sum(past.tokens_of(step) for step in past.picture.cells if step not in past.taken_over)
    most = sum(_most_tokens(past, step, asked) for step, asked in past.asked_by() if asked)
    if past.picture.status == "succeeded" and not least <= past.spent_tokens <= most:
        yield past.violation("", f"{least} to {most} tokens charged to its budget", str(past.spent_tokens))


def _most_tokens(past: Past, step: str, asked: list[Line]) -> int:
    told, attempts = past.tokens_of(step), max(len(asked), past.picture.cells[step].attempt)
    return told + (attempts - 1) * max(told, *(line.about_tokens for line in asked))


def _words(line: Line) -> str:
    return f"attempt {line.attempt} in process {line.pid}"


RULES: tuple[Rule, ...] = (
    is_answered,
    has_every_event_once,
    has_one_outcome_a_step,
    has_rising_fences,
    starts_again_for_a_reason_only,
    starts_after_its_sources,
    loses_leases_of_the_dead_only,
    was_done_as_granted,
    was_really_done,
    was_not_done_again,
    was_never_doubled,
    waits_for_its_task,
    was_asked_as_often_as_tried,
    was_asked_for_its_turns_only,
    was_routed_once_a_decision,
    remembers_what_it_was_told,
    was_charged_as_asked,
)
"""All that is checked of a run."""
