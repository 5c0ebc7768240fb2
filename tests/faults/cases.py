"""Named cases of workflows in Python: what else may come between a workflow and its end than a process that dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.flows.chains.step_ids import ADVANCE
from cantata.flows.definitions import PythonWorkflow
from cantata.ledger import refused_steps
from cantata.ledger.runs.results import is_over
from tests.faults import history
from tests.faults.past import Violation
from tests.faults.processes import family, pid_of
from tests.faults.shapes import definitions
from tests.faults.stage import Stage
from tests.waiting import until

PATIENCE_S = 90.0
LINGER_S = 0.5
NAMES = ("steps", "asks", "held", "wavers", "spins", "many", "fails", "tidies")
NON_DETERMINISTIC = ("clock", "chance", "uuid", "another command", "one more", "one less")
SPINS = ("blocks", "yields", "catches")
EXCEPTIONS = {
    "two": "one and two",
    "unspeakable": "no text",
    "unpicklable": "UnpicklableError",
    "local": "LocalError",
    "group": "",
}
"""What is told of each; of a group the workflow tells the first."""

NamedCase = Callable[[Stage], Iterator[Violation]]
"""Does one, and tells what is wrong."""

_numbers = count()


def advances_race(stage: Stage) -> Iterator[Violation]:
    """Each message is there many times, also those of the advances, while the run goes on."""
    app, run = stage.client.app, _begin(stage, "steps", 4 * 4, rounds=4)
    while not is_over(run.status()):
        for step_id, step in run.record().steps.items():
            for _ in range(2):
                app.send_task(step.spec.kind, args=[run.run_id, [step_id]], queue=app.broker_queue(step.spec.queue))
    yield from _checked(stage, run)


def signal_comes_before_the_wait(stage: Stage) -> Iterator[Violation]:
    """It is kept until the code asks."""
    run = _begin(stage, "asks", "early", linger_s=LINGER_S)
    yield from _expect(run, "a signal that is kept", run.signal("go", "early"), "kept")
    yield from _checked(stage, run)


def signals_come_during_the_wait(stage: Stage) -> Iterator[Violation]:
    """Of many at once, one is taken; to the others the step is over."""
    run = _begin(stage, "asks", "one", linger_s=LINGER_S)
    step = _waiting(run)
    with ThreadPoolExecutor(8) as threads:
        answers = Counter(threads.map(lambda _: run.signal(step, "one"), range(8)))
    yield from _expect(run, "one signal of eight taken", answers, Counter(taken=1, over=7))
    yield from _checked(stage, run)


def signal_comes_after_the_wait(stage: Stage) -> Iterator[Violation]:
    """It changes nothing: by the step's id it is over, by its name it is kept for a wait that never comes."""
    run = _begin(stage, "asks", "right", linger_s=LINGER_S)
    step = _waiting(run)
    run.signal("go", "right")
    yield from _expect(
        run, "a late signal over, and one kept", [run.signal(step, "late"), run.signal("go", "late")], ["over", "kept"]
    )
    yield from _checked(stage, run)
    yield from _expect(run, "a signal to a run that is over", run.signal("go", "late"), "closed")


def commands_end_during_an_advance(stage: Stage) -> Iterator[Violation]:
    """A command and a wait are over while the code that gave them is replayed for another one: the next advance has both."""
    folder = stage.folder / f"held-{next(_numbers)}"
    folder.mkdir()
    mark, file = folder / "mark", folder / "file"
    run = _begin(stage, "held", [1, 11, "went"], mark=str(mark), file=str(file))
    until(mark.exists, "the advance that is held", PATIENCE_S)
    until(
        lambda: [*_states(run, advances=False).values()].count("done") == 2,
        "the second tool, which is over first",
        PATIENCE_S,
    )
    run.signal("go", "went")
    until(lambda: set(_states(run, advances=False).values()) == {"done"}, "the commands", PATIENCE_S)
    advances = list(_states(run, advances=True).values())
    file.touch()
    yield from _expect(run, "the advance still under way", advances, ["running"])
    yield from _checked(stage, run)


def code_is_not_deterministic(stage: Stage) -> Iterator[Violation]:
    """The run stops with a message that names both, and nothing that the code asked for wrongly is executed."""
    begun: dict[str, tuple[ChainRun, Path]] = {}
    for kind in NON_DETERMINISTIC:
        file = stage.folder / f"wavers-{next(_numbers)}"
        begun[kind] = (_client(stage).submit_workflow("wavers", {"kind": kind, "file": str(file)}), file)
    for kind, (run, file) in begun.items():
        why = _refusal(stage, run)
        both = ("does not follow" in why, why.count("case_workflows.py:") >= 1 + (kind != "one less"))
        yield from _expect(run, f"code with {kind} refused, with both lines", both, (True, True), why)
        yield from _expect(run, f"code with {kind} under way", run.status(), "running")
        run.cancel()
        yield from _expect(run, f"code with {kind} cancelled", run.wait(PATIENCE_S).status, "cancelled")
        yield from _expect(run, f"notes of code with {kind}", len(file.read_text().splitlines()), 1)


def code_awaits_nothing(stage: Stage) -> Iterator[Violation]:
    """It is ended when its processor time is over, and the workers take other runs."""
    runs = {kind: _client(stage).submit_workflow("spins", {"kind": kind}) for kind in SPINS}
    for kind, run in runs.items():
        found = _fault(run, PATIENCE_S)
        yield from _expect(
            run, f"the time of code that {kind} over", "of processor time without an await" in found, True, found
        )
    yield from _checked(stage, _begin(stage, "steps", 4, rounds=1))


def workflow_has_many_commands(stage: Stage) -> Iterator[Violation]:
    """10,000 commands are executed; one more is refused by a message that says what to do."""
    whole = _client(stage).submit_workflow("many", {"commands": 10_000})
    more = _client(stage).submit_workflow("many", {"commands": 10_001})
    found = _fault(more, PATIENCE_S)
    yield from _expect(more, "too many commands", "10,000 commands" in found and "wf.continue_as" in found, True, found)
    yield from _expect(whole, "10,000 outcomes", whole.result(10 * PATIENCE_S).final_output, 10_000)


def exceptions_of_all_classes(stage: Stage) -> Iterator[Violation]:
    """Those that cannot be pickled or printed reach the code as texts, or end the run with one."""
    for kind, text in EXCEPTIONS.items():
        step, code = (
            _client(stage).submit_workflow("fails", {"kind": kind, "where": where}) for where in ("step", "code")
        )
        found = str(step.result(PATIENCE_S).final_output)
        yield from _expect(
            step, f"a step's failure ({kind}) caught", found.startswith("caught ") and text in found, True, found
        )
        found = _fault(code, PATIENCE_S)
        is_placed = "(at case_workflows.py:" in found or kind == "unspeakable"
        yield from _expect(
            code, f"a failure ({kind}) of the code told with its line", text in found and is_placed, True, found
        )


def worker_dies_while_it_is_cancelling(stage: Stage) -> Iterator[Violation]:
    """The step of the cleaning up in which it was killed is done again, and the run is cancelled when all is done."""
    file = stage.folder / f"tidies-{next(_numbers)}"
    run = _client(stage).submit_workflow("tidies", {"file": str(file)})
    _waiting(run)
    yield from _expect(run, "a run that cleans up", run.cancel(), "cancelling")
    until(file.exists, "the step that cleans up", PATIENCE_S)
    owner = until(
        lambda: [step.owner for step in run.record().steps.values() if step.state == "running"],
        "its worker",
        PATIENCE_S,
    )
    killed = stage.worker_of(pid_of(owner[0]))
    for each in family(killed):
        stage.journal.write("killed", pid=each)
    os.kill(killed, signal.SIGKILL)
    yield from _expect(run, "a run whose worker was killed", run.wait(PATIENCE_S).status, "cancelled")
    yield from _expect(run, "lost steps", any(event.type == "lost" for event in run.log()), True)
    yield from _expect(
        run, "what was cleaned up", list(dict.fromkeys(file.read_text().splitlines())), ["begun", "clean", "up"]
    )


CASES: Mapping[str, NamedCase] = {
    case.__name__.replace("_", " "): case
    for case in (
        advances_race,
        signal_comes_before_the_wait,
        signals_come_during_the_wait,
        signal_comes_after_the_wait,
        commands_end_during_an_advance,
        code_is_not_deterministic,
        code_awaits_nothing,
        workflow_has_many_commands,
        exceptions_of_all_classes,
        worker_dies_while_it_is_cancelling,
    )
}


def do(stage: Stage, name: str) -> list[Violation]:
    """Do one case; what does not come in time is a violation too."""
    found: list[Violation] = []
    try:
        for violation in CASES[name](stage):
            found.append(violation)  # those before a TimeoutError count
    except TimeoutError as error:
        found.append(Violation("", "", f"{name}: all in time", str(error)))
    return found


def _client(stage: Stage) -> Client:
    """A client whose configuration has the workflows of the cases."""
    own = {
        name: PythonWorkflow(function=f"case_workflows:{name}", cancel_grace_s=None if name == "tidies" else 0)
        for name in NAMES
    }
    return stage.client.with_definitions(definitions().model_copy(update={"workflows": own}))


def _begin(stage: Stage, name: str, expected: Any, **given: Any) -> ChainRun:
    """Submit a run that must succeed with this output, and write down that it was accepted."""
    run = _client(stage).submit_workflow(name, {"journal": str(stage.journal.path), **given})
    stage.journal.write("accepted", run_id=run.run_id, tag=f"case-{next(_numbers)}", shape=name, expected=expected)
    return run


def _checked(stage: Stage, run: ChainRun) -> Iterator[Violation]:
    """What is wrong with a run when it is over."""
    run.wait(PATIENCE_S)
    yield from history.check_runs(stage.journal, stage.client.redis, [run.run_id])


def _expect(run: ChainRun, what: str, found: object, expected: object, more: str = "") -> Iterator[Violation]:
    if found != expected:
        yield Violation(run.run_id, "", f"{what}: {expected}", f"{found} {more}")


def _waiting(run: ChainRun) -> str:
    """The step that waits for a signal, when it does."""
    return str(
        until(
            lambda: [step for step, state in _states(run).items() if state == "waiting_signal"], "the wait", PATIENCE_S
        )[0]
    )


def _refusal(stage: Stage, run: ChainRun) -> str:
    """Why a step of a run was refused, when it is."""
    redis = stage.client.redis
    return str(
        until(lambda: [why for why in refused_steps.recent(redis) if run.run_id in why], "a refusal", PATIENCE_S)[0]
    )


def _fault(run: ChainRun, timeout_s: float) -> str:
    """The message with which a run failed."""
    error = run.result(timeout_s).error
    return error.message if error else ""


def _states(run: ChainRun, *, advances: bool | None = None) -> dict[str, str]:
    """The states of the steps behind the workflow's own; only of advances, or of commands, if that is told."""
    behind = {step_id: step.state for step_id, step in run.record().steps.items() if "/" in step_id}
    return {
        step_id: state for step_id, state in behind.items() if advances is None or advances == step_id.endswith(ADVANCE)
    }
