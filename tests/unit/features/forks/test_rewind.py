"""Forks of ended runs: which steps run again, and the graph as it was before they ran."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cantata.errors import ConfigError
from cantata.features.forks import rewind
from cantata.flows.forks import EndedRun, EndedStep, ExpandedItems, Expansion, ForkSpec, OutEdge
from cantata.flows.graph import START

DONE = EndedStep(state="done", pending=0, taken=1, takes=("done",))
FAILED = EndedStep(state="failed", pending=0, taken=1)
NEVER_DUE = EndedStep(state="skipped", pending=0, taken=0)
STOPPED = EndedStep(state="skipped", pending=1, taken=0)


def ended(
    steps: dict[str, EndedStep],
    edges: Iterable[str] = (),
    *,
    names: dict[str, str] | None = None,
    expansions: dict[str, Expansion] | None = None,
    specs: dict[str, ForkSpec] | None = None,
) -> EndedRun:
    """A run with these steps behind @start; an edge is `a -> b`."""
    out: dict[str, tuple[OutEdge, ...]] = {}
    for source, target in (edge.split(" -> ") for edge in edges):
        out[source] = (*out.get(source, ()), OutEdge(target, "done", True))
    return EndedRun(
        run_id="old",
        status="failed",
        kind="turn",
        request={},
        definitions="",
        labels={},
        steps={START: DONE, **steps},
        specs=dict.fromkeys((START, *steps), ForkSpec()) | (specs or {}),
        shared={},
        edges=out,
        names=names or {},
        expansions=expansions or {},
        terminals='["d"]',
    )


DIAMOND = ("a -> b", "a -> c", "b -> d", "c -> d")


def test_a_step_and_all_behind_it_run_again_and_nothing_else() -> None:
    fork = rewind.fork(ended(dict.fromkeys("abcd", DONE), DIAMOND), "b")

    assert [(step.step_id, step.pending, step.taken) for step in fork.restarted] == [("b", 0, 1), ("d", 1, 1)]
    assert (fork.left, fork.count, fork.removed, fork.edges) == (2, 5, (), {})


def test_from_the_first_step_the_run_is_planned_again() -> None:
    fork = rewind.fork(ended(dict.fromkeys("abcd", DONE), DIAMOND, names={"x": "a"}), START)

    assert [step.step_id for step in fork.restarted] == [START]
    assert fork.removed == ("a", "b", "c", "d")
    assert (fork.edges, fork.names, fork.terminals) == ({START: []}, {"x": False}, "[]")


def test_a_retry_runs_what_failed_and_what_was_stopped_but_no_branch_that_was_not_taken() -> None:
    run = ended({"a": DONE, "b": FAILED, "c": NEVER_DUE, "d": STOPPED}, DIAMOND)

    assert [step.step_id for step in rewind.retry(run).restarted] == ["b", "d"]


def test_a_run_that_left_nothing_cannot_be_retried() -> None:
    with pytest.raises(
        ConfigError, match=r"run old left nothing to retry: its status is 'failed'; fork it from a step"
    ):
        rewind.retry(ended({"a": DONE}))


def test_a_failure_in_a_scope_that_finished_is_no_reason_to_retry() -> None:
    grown = {"team": Expansion(ids=("team/a", "team/end"), exit="team/end")}
    steps = {"team": DONE, "team/a": FAILED, "team/end": DONE}
    run = ended(steps, names={"team": "team/end"}, expansions=grown, specs={"team/a": ForkSpec(scope="team")})

    with pytest.raises(ConfigError, match="nothing to retry"):
        rewind.retry(run)


def test_a_step_that_expanded_expands_again_without_what_it_added() -> None:
    grown = {"a": Expansion(ids=("a/x", "a/end"), exit="a/end", names={"was": "a"})}
    run = ended(
        {"a": DONE, "a/x": DONE, "a/end": DONE, "d": DONE},
        ("a/x -> a/end", "a/end -> d"),
        names={"a": "a/end"},
        expansions=grown,
    )

    fork = rewind.fork(run, "a/x")
    assert [step.step_id for step in fork.restarted] == ["a/x", "a/end", "d"]
    assert fork.expand_again == ()

    fork = rewind.fork(run.model_copy(update={"names": {}}), "a")
    assert [step.step_id for step in fork.restarted] == ["a", "d"]
    assert (fork.removed, fork.expand_again) == (("a/x", "a/end"), ("a",))
    assert fork.edges == {"a": [OutEdge("d", "done", True)]}
    assert fork.names == {"a": False, "was": "a"}


def test_edges_that_an_exit_has_of_its_own_go_with_it() -> None:
    grown = {"a": Expansion(ids=("a/end",), exit="a/end", own=(OutEdge("e", "done", True),))}
    run = ended({"a": DONE, "a/end": DONE, "d": DONE, "e": DONE}, ("a/end -> d", "a/end -> e"), expansions=grown)

    assert rewind.fork(run, "a").edges == {"a": [OutEdge("d", "done", True)]}


def test_the_items_of_a_map_that_finished_stay() -> None:
    items = ExpandedItems(like="m/*", prefix="m", count=3, window=2)
    grown = {"m": Expansion(ids=("m/*", "m/end"), items=items, exit="m/end")}
    steps = {"m": DONE, "m/0": DONE, "m/1": FAILED, "m/2": STOPPED, "m/end": STOPPED}
    in_window = {f"m/{i}": ForkSpec(window="m") for i in range(3)}

    fork = rewind.retry(
        ended(steps, [f"m/{i} -> m/end" for i in range(3)], names={"m": "m/end"}, expansions=grown, specs=in_window)
    )

    assert [step.step_id for step in fork.restarted] == ["m/1", "m/2", "m/end"]
    assert {name: (window.size, window.busy, window.items) for name, window in fork.windows.items()} == {
        "m": (2, 0, ("m/1", "m/2"))
    }


@pytest.mark.parametrize(("b", "quorum", "joins"), [(FAILED, 1, ["b", "c"]), (DONE, 0, ["c"])])
def test_a_quorum_counts_the_steps_that_are_taken_over(b: EndedStep, quorum: int, joins: list[str]) -> None:
    steps = {"a": DONE, "b": b, "c": FAILED, "d": STOPPED}

    fork = rewind.fork(ended(steps, ("a -> d", "b -> d", "c -> d"), specs={"d": ForkSpec(quorum=2)}), "d")

    join = fork.restarted[-1]
    assert (join.quorum, join.is_quorum_met, join.joins) == (quorum, quorum == 0, joins)
    assert join.taken == 2 - quorum


def test_a_step_is_named_by_the_last_part_of_its_id() -> None:
    run = ended({"flow/ask": DONE, "flow/read": DONE})

    assert [step.step_id for step in rewind.fork(run, "ask").restarted] == ["flow/ask"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "'x' may be any of several steps of run old: 'one/x', 'two/x'"),
        ("asks", "run old has no step 'asks'; did you mean 'ask'?"),
        ("nowhere", "run old has no step 'nowhere'"),
        ("idle", "step 'idle' was skipped, since nothing led to it; fork from a step that decides that"),
    ],
)
def test_a_name_that_is_no_step_to_fork_from_is_refused(name: str, message: str) -> None:
    run = ended({"one/x": DONE, "two/x": DONE, "ask": DONE, "idle": NEVER_DUE})

    with pytest.raises(ConfigError) as refused:
        rewind.fork(run, name)

    assert message in str(refused.value)
