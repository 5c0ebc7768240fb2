"""Canvases send each ready step once, keep order, and carry only what is fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from celery import Celery, chain, chord, group
from celery.canvas import Signature
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows import canvas
from cantata.flows.canvas import MAX_CHAIN_LINKS, BatchPolicy, Canvas, Followers, MessageHead, carried_steps, steps_of
from cantata.flows.graph import Edge, Graph, Spec, Step
from tests.examples import examples


def step(step_id: str, **fields: object) -> Step:
    return Step.model_validate({"id": step_id, "kind": "agent.turn", "queue": "agents", "work": "agents:a", **fields})


def row(*ids: str) -> Graph:
    return Graph(steps=tuple(map(step, ids)), edges=tuple(Edge(source=a, target=b) for a, b in pairwise(ids)))


def spec_of(graph: Graph, step_id: str) -> tuple[str, Spec]:
    return step_id, next(s for s in graph.steps if s.id == step_id)


class App(Celery):
    def broker_queue(self, queue: str) -> str:
        return f"cantata.{queue}"


HEAD = MessageHead(App(set_as_current=False), "r")


def build(
    ready: Sequence[tuple[str, Spec]], graph: Graph | None = None, pace: BatchPolicy | None = None
) -> tuple[Any, ...]:
    return canvas.build(HEAD, ready, Followers(graph) if graph else None, pace)


def message(*ids: str) -> Any:
    return HEAD.signature("agent.turn", "agents", ids, work="agents:a")


def members_of(each: Canvas) -> list[Canvas]:
    return list(each.tasks) if isinstance(each, group | chord) else [each]


def first_of(member: Canvas) -> Signature[Any]:
    return member.tasks[0] if isinstance(member, chain) else member


def last_of(member: Canvas) -> Signature[Any]:
    return member.tasks[-1] if isinstance(member, chain) else member


def sent(canvases: tuple[Canvas, ...]) -> list[str]:
    return [step_id for each in canvases for member in members_of(each) for step_id in steps_of(first_of(member))]


def test_a_row_becomes_a_chain() -> None:
    graph = row("a", "b", "c")

    canvases = build([spec_of(graph, "a")], graph)

    assert canvases == (chain(message("a"), message("b"), message("c"), app=HEAD.app),)
    assert isinstance(canvases[0], chain)


def test_a_chain_has_at_most_sixteen_links() -> None:
    graph = row(*(f"s{i}" for i in range(40)))

    (row_of_steps,) = build([spec_of(graph, "s0")], graph)

    assert len(row_of_steps.tasks) == MAX_CHAIN_LINKS


def test_a_fan_that_meets_in_one_step_becomes_a_chord() -> None:
    graph = Graph(
        steps=(step("a"), step("b"), step("j")), edges=(Edge(source="a", target="j"), Edge(source="b", target="j"))
    )

    canvases = build([spec_of(graph, "a"), spec_of(graph, "b")], graph)

    assert canvases == (chord(group([message("a"), message("b")]), message("j")),)


def test_a_join_that_waits_for_others_is_not_carried() -> None:
    edges = (Edge(source="a", target="j"), Edge(source="b", target="j"), Edge(source="late", target="j"))
    graph = Graph(steps=(step("a"), step("b"), step("late"), step("j")), edges=edges)

    canvases = build([spec_of(graph, "a"), spec_of(graph, "b")], graph)

    assert carried_steps(canvases) == ()


def test_nothing_behind_a_step_that_may_grow_is_carried() -> None:
    graph = Graph(steps=(step("a", expands=True), step("b")), edges=(Edge(source="a", target="b"),))

    canvases = build([spec_of(graph, "a")], graph)

    assert canvases == (message("a"),)


def fan_of_rows(**joined: object) -> Graph:
    """a → b and c → d, which meet in j."""
    pairs = [("a", "b"), ("c", "d"), ("b", "j"), ("d", "j")]
    return Graph(
        steps=(*map(step, "abcd"), step("j", **joined)), edges=tuple(Edge(source=a, target=b) for a, b in pairs)
    )


def test_rows_that_meet_in_one_step_become_a_chord_of_chains() -> None:
    graph = fan_of_rows()

    canvases = build([spec_of(graph, "a"), spec_of(graph, "c")], graph)

    rows = [chain(message(*first), message(*second), app=HEAD.app) for first, second in (("a", "b"), ("c", "d"))]
    assert canvases == (chord(group(rows), message("j")),)
    assert carried_steps(canvases) == ("b", "d", "j")


def test_rows_that_meet_nowhere_become_a_group_of_chains() -> None:
    graph = fan_of_rows(quorum=1)

    (fan,) = build([spec_of(graph, "a"), spec_of(graph, "c")], graph)

    assert isinstance(fan, group)
    assert [[steps_of(link) for link in member["kwargs"]["tasks"]] for member in fan.tasks] == [
        [["a"], ["b"]],
        [["c"], ["d"]],
    ]


def test_each_of_several_fans_becomes_a_chord() -> None:
    edges = tuple(Edge(source=a, target=b) for a, b in zip("abcd", "iijj", strict=True))
    graph = Graph(steps=tuple(map(step, "abcdeij")), edges=edges)

    *chords, alone = build([spec_of(graph, each) for each in "abcde"], graph)

    assert chords == [
        chord(group([message(a), message(b)]), message(join)) for a, b, join in (("a", "b", "i"), ("c", "d", "j"))
    ]
    assert alone == message("e")


def test_members_of_a_chord_may_grow_and_its_join_may_be_a_decision() -> None:
    steps = (step("a", expands=True), step("b"), step("j", decides=True))
    graph = Graph(steps=steps, edges=(Edge(source="a", target="j"), Edge(source="b", target="j")))

    assert carried_steps(build([spec_of(graph, "a"), spec_of(graph, "b")], graph)) == ("j",)


def test_decisions_waits_and_early_joins_are_not_carried() -> None:
    for fields in ({"decides": True}, {"kind": "wait"}, {"quorum": 1}, {"deadline_s": 1.0}):
        graph = Graph(steps=(step("a"), step("b", **fields)), edges=(Edge(source="a", target="b"),))

        assert carried_steps(build([spec_of(graph, "a")], graph)) == ()


def test_cheap_steps_go_several_to_a_message_and_carry_nothing() -> None:
    graph = Graph(steps=tuple(step(f"s{i}") for i in range(10)))
    pace = BatchPolicy(lambda spec: True, lambda spec, ready: 4)

    (fan,) = build([spec_of(graph, f"s{i}") for i in range(10)], graph, pace)

    assert isinstance(fan, group)
    assert [len(steps_of(member)) for member in fan.tasks] == [4, 4, 2]


def test_steps_of_different_kind_or_queue_never_share_a_message() -> None:
    steps = (step("a"), step("b", queue="gpu"), step("c", kind="tool.call"))
    pace = BatchPolicy(lambda spec: True, lambda spec, ready: 10)

    (fan,) = build([(s.id, s) for s in steps], None, pace)

    kinds = {(member.task, member.options["queue"]) for member in fan.tasks}
    assert kinds == {("agent.turn", "cantata.agents"), ("agent.turn", "cantata.gpu"), ("tool.call", "cantata.agents")}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(1, 14))
    ids = [f"s{i}" for i in range(size)]
    flags = [draw(st.fixed_dictionaries({"decides": st.booleans(), "expands": st.booleans()})) for _ in ids]
    pairs = draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=3 * size))
    edges = tuple(Edge(source=ids[min(p)], target=ids[max(p)]) for p in sorted(pairs) if p[0] != p[1])
    return Graph(steps=tuple(step(i, **f) for i, f in zip(ids, flags, strict=True)), edges=edges)


@examples(300)
@given(graphs(), st.booleans())
def test_each_ready_step_is_sent_once_in_order_and_only_fixed_steps_are_carried(graph: Graph, cheap: bool) -> None:
    targets = {edge.target for edge in graph.edges}
    ready = [(s.id, s) for s in graph.steps if s.id not in targets]
    pace = BatchPolicy(lambda spec: cheap, lambda spec, count: 3)

    canvases = build(ready, graph, pace)

    assert Counter(sent(canvases)) == Counter(step_id for step_id, _ in ready)
    later = carried_steps(canvases)
    assert len(set(later)) == len(later)
    assert not set(later) & set(sent(canvases))
    specs = {s.id: s for s in graph.steps}
    for each in canvases:
        for sources, behind in _links(each):
            for target in steps_of(behind):
                into = {edge.source for edge in graph.edges if edge.target == target}
                assert into == set(sources), "a carried step waits for exactly the steps its canvas sends before it"
                is_link = len(into) == 1
                assert not (is_link and specs[sources[0]].expands), "an expansion could come between"
                assert not (is_link and specs[target].decides)


def _links(each: Canvas) -> list[tuple[list[str], Signature[Any]]]:
    rows = [member.tasks for member in members_of(each) if isinstance(member, chain)]
    links = [(steps_of(before), after) for row_of_steps in rows for before, after in pairwise(row_of_steps)]
    body = (
        [([i for member in each.tasks for i in steps_of(last_of(member))], each.body)]
        if isinstance(each, chord)
        else []
    )
    return links + body
