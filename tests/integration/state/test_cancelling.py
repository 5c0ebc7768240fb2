"""The ledger's promises about runs that are cancelled while workflows in Python are under way: these clean up, and all else is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from cantata.flows.graph import Edge, Graph, Outcome, Step
from cantata.flows.wire import RunStatus
from cantata.flows.workflows.expansion import CANCELLED
from cantata.ledger.ledger import Ledger
from cantata.ledger.runs.listing import RunFilter, find_page
from cantata.values import ErrorInfo
from tests.integration.state.play import Play, failed, row, sent, wait, work
from tests.integration.state.test_ledger_expansion import mapped

GRACE_S = 30.0


def advance(step_id: str, root: str = "", **params: Any) -> Step:
    """An advance of a workflow; without `root`, its first one."""
    given = {"workflow": "flow", **({"root": root} if root else {}), **params}
    return Step.model_validate(
        {"kind": "workflow.advance", "queue": "tools", "expands": True, "id": step_id, "params": given}
    )


def expand(play: Play, step_id: str, *commands: Step, number: int = 1, root: str = "", **params: Any) -> str:
    """Have an advance give commands, and wait for all of them; the next advance."""
    root = root or step_id
    behind = advance(f"{root}/@{number}/advance", root, advance=number, **params)
    edges = tuple(Edge(source=command.id, target=behind.id, wakes=False) for command in commands)
    play.do(step_id, fragment=Graph(steps=(*commands, behind), edges=edges, exit=behind.id))
    return behind.id


def flow(
    ledger: Ledger, *more: Step, edges: tuple[Edge, ...] = (), timeout_s: float = 600, **params: Any
) -> tuple[Play, str]:
    """A run whose workflow `w` waits for a function and a person; its next advance."""
    play = Play(ledger, timeout_s=timeout_s)
    play.plan(advance("w"), *more, edges=edges)
    return play, expand(play, "w", work("w/0.call", on_error="skip"), wait("w/1.wait", on_error="skip"), **params)


def is_asked_to_clean_up(play: Play, step_id: str) -> bool:
    """Begin an advance: whether its code gets CancelledError."""
    return bool(play.begin(step_id).inputs.get(CANCELLED))


def left_s(play: Play) -> float:
    """How long the run has, by the timer of its deadline."""
    due = play.ledger.redis.zscore(f"{play.shard}:due", f"deadline|{play.run_id}|")
    seconds, micros = play.ledger.redis.time()
    return float(due or 0) / 1000 - seconds - micros / 1e6


def open_timers(play: Play) -> set[str]:
    """The timers and leases that the run still has."""
    return {
        str(each)
        for part in ("due", "leases", "ready", "tasks")
        for each in play.ledger.redis.zrange(f"{play.shard}:{part}", 0, -1)
    }


def test_all_steps_are_stopped_but_the_next_advance(ledger: Ledger) -> None:
    play, behind = flow(ledger, work("after"), edges=row("w", "after"))
    begun = play.begin("w/0.call")

    assert ledger.runs.cancel("run") == "cancelling"

    assert play.words("w/0.call", "w/1.wait", "after", behind) == "skipped skipped skipped sent"
    assert play.status == ledger.reader.read("run").status == "cancelling"
    assert play.events().count("cancelling") == 1
    assert open_timers(play) == {"deadline|run|", f"run|{behind}"}
    assert left_s(play) == pytest.approx(GRACE_S, abs=2)
    assert play.commit(begun, "late").result == "stale"


def test_the_next_sweep_sends_it(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")

    assert sent(play.sweep()) == [behind]


def test_it_cleans_up_and_then_the_run_is_cancelled(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")

    play.lose_lease(play.begin(behind))
    again = play.begin(behind)
    assert again.inputs[CANCELLED] is True, "a repeated attempt too"
    play.lose_lease(again)
    ends = expand(play, behind, work("w/2.clean", on_error="skip"), number=2, root="w")
    play.do("w/2.clean", "clean")
    assert play.status == "cancelling"

    held = play.begin(ends)
    assert CANCELLED not in held.inputs
    assert play.commit(held, outcome=failed("cancelled", ends)).run_status == "cancelled"

    record = ledger.reader.read("run")
    assert (record.status, record.error) == ("cancelled", ErrorInfo(code="cancelled", message="the run was cancelled"))
    assert play.output("w/2.clean") == "clean"
    play.sweep()
    assert open_timers(play) == set()


@pytest.mark.parametrize("how", ["sent", "running", "retried", "lost"])
def test_an_advance_that_is_under_way_begins_again(ledger: Ledger, how: str) -> None:
    play, behind = flow(ledger)
    play.do("w/0.call")
    ledger.steps.signal("run", "w/1.wait", True)
    begun = None if how == "sent" else play.begin(behind)
    if begun and how == "retried":
        play.commit(begun, outcome=Outcome(status="retry", retry_in_s=9, error=ErrorInfo(code="x", message="x")))
    if begun and how == "lost":
        play.lose_lease(begun)

    assert ledger.runs.cancel("run") == "cancelling"

    assert play.words(behind) == "sent"
    assert open_timers(play) == {"deadline|run|", f"run|{behind}"}
    again = play.begin(behind)
    assert again.inputs[CANCELLED] is True
    if begun:
        assert ledger.leases.renew([begun.lease]) == {begun.lease}
        assert play.commit(begun, "late").result == "stale"
    assert play.commit(again).run_status == "cancelled"


def test_a_workflow_within_a_workflow_is_stopped(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(advance("w"))
    outer = expand(play, "w", advance("w/0.child"))
    inner = expand(play, "w/0.child", wait("w/0.child/0.wait"))

    ledger.runs.cancel("run")

    assert play.words(outer, inner, "w/0.child/0.wait") == "sent skipped skipped"
    assert is_asked_to_clean_up(play, outer)


def test_the_workflows_of_a_map_clean_up(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("m"))
    play.do("m", fragment=mapped("m", (1, 2), **advance("").model_dump(include={"kind", "expands", "params"})))
    behind = [expand(play, item, work(f"{item}/0.call", on_error="skip")) for item in ("m/0", "m/1")]

    assert ledger.runs.cancel("run") == "cancelling"

    assert play.words(*behind) == "sent sent"


def test_all_workflows_of_a_chain_clean_up(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        advance("v"), advance("w"), advance("unbegun"), work("after"), edges=(*row("v", "after"), *row("w", "after"))
    )
    first, second = (
        expand(play, name, wait(f"{name}/0.wait"), grace_s=grace_s) for name, grace_s in (("v", 10), ("w", 50))
    )

    ledger.runs.cancel("run")

    assert play.words(first, second, "unbegun", "after") == "sent sent skipped skipped"
    assert left_s(play) == pytest.approx(50, abs=2), "the longest grace"
    assert play.fail(first, "cancelled").run_status == "running"
    assert (play.status, play.words(second)) == ("cancelling", "sent")
    assert play.fail(second, "cancelled").run_status == "cancelled"


def test_a_workflow_that_begins_meanwhile_is_not_cancelled(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")
    expand(play, behind, advance("w/2.child", on_error="skip"), number=2, root="w")

    assert not is_asked_to_clean_up(play, "w/2.child")


def test_a_wait_does_not_stop_the_grace(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    play.do("w/0.call")
    assert left_s(play) < 0, "its clock stands still while it waits for a person"
    ledger.runs.cancel("run")
    assert left_s(play) == pytest.approx(GRACE_S, abs=2)

    expand(play, behind, wait("w/2.wait", on_error="skip"), number=2, root="w")

    assert left_s(play) == pytest.approx(GRACE_S, abs=2)


@pytest.mark.parametrize("then", ["unbegun", "begun", "waiting"])
def test_the_run_ends_with_the_grace(ledger: Ledger, then: str) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")
    if then == "begun":
        play.begin(behind)
    if then == "waiting":
        expand(play, behind, wait("w/2.wait", on_error="skip"), number=2, root="w")

    assert play.come_due("deadline").ended == ("run",)

    record = ledger.reader.read("run")
    assert (record.status, record.error and record.error.code) == ("cancelled", "cancelled")
    play.sweep()
    assert open_timers(play) == set()


@pytest.mark.parametrize("outcome", [Outcome(output="went on"), failed("broke")])
def test_however_the_code_ends_the_run_is_cancelled(ledger: Ledger, outcome: Outcome) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")

    assert play.commit(play.begin(behind), outcome=outcome).run_status == "cancelled"


def test_a_budget_that_is_spent_ends_it_at_once(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")
    expand(play, behind, work("w/2.agent", on_error="skip"), number=2, root="w")

    assert play.fail("w/2.agent", "budget").run_status == "exhausted"


def test_the_deadline_of_the_run_counts_if_it_is_earlier(ledger: Ledger) -> None:
    play, _ = flow(ledger, timeout_s=7)

    ledger.runs.cancel("run")

    assert left_s(play) == pytest.approx(7, abs=2)
    play.come_due("deadline")
    assert play.status == "cancelled"


def test_a_second_cancel_changes_nothing(ledger: Ledger) -> None:
    play, behind = flow(ledger)
    ledger.runs.cancel("run")
    ends_s, known = left_s(play), play.events()
    play.begin(behind)

    assert ledger.runs.cancel("run") == "cancelling"

    assert (play.words(behind), play.events()[: len(known)]) == ("running", known)
    assert left_s(play) <= ends_s


@pytest.mark.parametrize("why", ["no grace", "code not begun", "no workflow", "a failure"])
def test_else_it_ends_at_once(ledger: Ledger, why: str) -> None:
    if why == "no grace":
        play, _ = flow(ledger, grace_s=0)
    else:
        play = Play(ledger)
        play.plan(*([work("a")] if why == "no workflow" else [advance("w")]))
        if why == "a failure":
            expand(play, "w", work("w/0.call"))
    status: RunStatus = "failed" if why == "a failure" else "cancelled"

    assert ledger.runs.cancel("run", status=status) == play.status == status


def test_a_listing_and_a_snapshot_tell_it(ledger: Ledger) -> None:
    flow(ledger)
    ledger.runs.cancel("run")

    found = {
        status: [run.status for run in find_page(ledger, RunFilter(statuses=(status,))).runs]
        for status in ("running", "cancelling")
    }
    assert found == {"running": [], "cancelling": ["cancelling"]}
    assert ledger.reader.snapshot("run").run.status == "cancelling"
