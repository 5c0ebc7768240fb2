"""The work of one call of a script is a bounded number of commands of Redis; what is left is done by later calls, as if by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from cantata.features.forks import fork_store, rewind
from cantata.features.inbox import inbox
from cantata.features.inbox.inbox import InboxFilter
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.schedules.firing import MOST_STARTED
from cantata.features.schedules.schedule_store import Fired, Firing, ScheduleRecord, ScheduleStore, run_id_at, scope_of
from cantata.features.sessions.sessions import Sessions
from cantata.flows.definitions import Budget, Budgets, Limits, Rates
from cantata.flows.graph import START, Edge, Graph, ItemSteps, Outcome, Step, adopt
from cantata.flows.schedules import Schedule
from cantata.flows.waits import InboxItem
from cantata.flows.wire import HistoryEntry
from cantata.ledger import scripts
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.ledger.redis.keys import shard_key, shard_of
from cantata.ledger.run_store import offer_of
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from cantata.ledger.scripts import Finished
from tests.integration.features.forks.test_forks import near
from tests.integration.state.limits_stage import MODEL, Stage
from tests.integration.state.play import Play, failed, fan_in, row, sent, wait, work

MANY = 1_500
MAX_COMMANDS = 2_000
"""In one call of a script: about 3 ms of Redis."""

HOUR_S = 3600.0
FIELDS = {"timing": "", "request": "{}", "labels": "{}", "quota": "{}", "origin": "api", "next": ""}
"""Of a schedule."""
WAIT: dict[str, Any] = {
    "question": "Sure?",
    "remind_after_s": HOUR_S,
    "escalate_after_s": HOUR_S,
    "escalate_to": ["bo"],
}


def commands(redis: Redis, act: Callable[[], object]) -> int:
    """The most commands that one call of a script took, among those that this made."""
    most = count = 0
    with redis.monitor() as monitor:  # type: ignore[no-untyped-call]  # untyped in redis-py
        act()
        redis.echo("that is all")
        for entry in monitor.listen():
            if entry["client_type"] == "lua":
                count += 1
                most = max(most, count)
            elif entry["command"] == "ECHO that is all":
                return most
            else:
                count = 0
    raise AssertionError("the connection was lost")


def ids(prefix: str, count: int = MANY) -> tuple[str, ...]:
    return tuple(f"{prefix}{n}" for n in range(count))


def works(prefix: str, **spec: object) -> tuple[Step, ...]:
    return tuple(work(step_id, **spec) for step_id in ids(prefix))


def waits(prefix: str) -> tuple[Step, ...]:
    return tuple(wait(step_id, timeout_s=HOUR_S, params={"wait": WAIT}) for step_id in ids(prefix))


def grow(play: Play, parent: str, graph: Graph) -> None:
    """Have a step expand as handlers do."""
    begun = play.begin(parent)
    play.commit(begun, outcome=Outcome(fragment=adopt(graph, parent, begun.spec)))


def mapped(play: Play, *, window: int, like: Step | None = None, on_error: str = "skip") -> None:
    """A run of a map, with a step after it that any end of the map starts."""
    edges = tuple(Edge(source="map", target="b", label=label) for label in ("done", "failed"))
    play.plan(work("map", on_error=on_error), work("b"), edges=edges, terminals=("b",))
    items = ItemSteps(like="map/item", prefix="map", given=tuple(range(MANY)), window=window)
    steps = (like or work("map/item"), work("map/gather"))
    grow(play, "map", Graph(steps=steps, edges=row("map/item", "map/gather"), items=items, exit="map/gather"))


# --- the worst request of each door: it replies what is to be measured, and what is to hold afterwards ------------------------

Door = Callable[[Ledger], tuple[Callable[[], object], Callable[[], object]]]


def a_map_fails(
    ledger: Ledger, *, window: int = 2, on_error: str = "skip"
) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    mapped(play, window=window, on_error=on_error)
    begun = play.begin("map/0")

    def check() -> None:
        states = {step_id: step.state for step_id, step in ledger.reader.read("run").steps.items()}
        assert {states[f"map/{n}"] for n in range(1, MANY)} == {"skipped"}
        assert (states["map/0"], states["map/gather"], states["b"]) == ("failed", "failed", "sent")

    return lambda: play.commit(begun, outcome=failed()), check


def a_map_of_maps_fails(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """Its items have added steps, which are stopped too."""
    play = Play(ledger)
    mapped(play, window=MANY)
    for n in range(300):
        grow(
            play,
            f"map/{n}",
            Graph(steps=(*(work(f"map/{n}/{m}") for m in range(5)), work(f"map/{n}/x")), exit=f"map/{n}/x"),
        )
    begun = play.begin(f"map/{MANY - 1}")

    def check() -> None:
        states = {step_id: step.state for step_id, step in ledger.reader.read("run").steps.items()}
        assert {states[f"map/{n}/{m}"] for n in range(300) for m in (0, 4, "x")} == {"skipped"}
        assert (states["map/gather"], states["b"]) == ("failed", "sent")
        assert ledger.redis.zcard(f"{play.shard}:ready") == 1

    return lambda: play.commit(begun, outcome=failed()), check


def a_scope_fails(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """Each of its steps also leads to one outside."""
    play = Play(ledger)
    play.plan(
        work("team", on_error="jump"), work("b"), *works("o"), edges=(Edge(source="team", target="b", label="failed"),)
    )
    edges = tuple(Edge(source=f"team/{n}", target=f"team/{n}x") for n in range(MANY // 2))
    steps = (
        *(work(f"team/{n}") for n in range(MANY // 2)),
        *(wait(f"team/{n}x") for n in range(MANY // 2)),
        work("team/exit"),
    )
    grow(play, "team", Graph(steps=steps, edges=edges, exit="team/exit"))
    begun = play.begin("team/0")

    def check() -> None:
        assert play.words("team/1", "team/1x", "team/exit", "b") == "skipped skipped failed sent"

    return lambda: play.commit(begun, outcome=failed()), check


def many_follow(ledger: Ledger, steps: tuple[Step, ...]) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(work("a"), *steps, edges=tuple(Edge(source="a", target=step.id) for step in steps))
    begun = play.begin("a")
    states = {"sent"} if steps[0].kind == "work" else {"waiting_signal"}

    def check() -> None:
        assert {
            step.state for step_id, step in ledger.reader.read("run").steps.items() if step_id not in ("a", START)
        } == states

    return lambda: play.commit(begun, outcome=Outcome(warnings=("so it is recorded in the long way",))), check


def a_row_is_skipped(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(*works("s"), edges=row(*ids("s")))
    begun = play.begin("s0")
    return lambda: play.commit(begun, outcome=Outcome(takes=("left",))), lambda: _is("succeeded", play)


def _is(status: str, play: Play) -> None:
    assert play.status == status


def a_quorum_is_reached(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(*works("s"), work("z", quorum=1), edges=fan_in(ids("s"), "z"))
    begun = play.begin("s0")

    def check() -> None:
        assert play.words("s0", "s1", f"s{MANY - 1}", "z") == "done failed failed sent"

    return lambda: play.commit(begun), check


def a_join_is_late(ledger: Ledger, *, of_map: bool = False) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    if of_map:
        play.plan(work("map"))
        items = ItemSteps(like="map/item", prefix="map", given=tuple(range(MANY)), window=2)
        steps = (work("map/item"), work("z", deadline_s=HOUR_S))
        grow(play, "map", Graph(steps=steps, edges=row("map/item", "z"), items=items, exit="z"))
    else:
        play.plan(*works("s"), work("z", deadline_s=HOUR_S), edges=fan_in(ids("s"), "z"))

    def check() -> None:
        assert play.words("z", "map/7" if of_map else "s7") == "sent failed"

    return lambda: play.come_due("join", "z"), check


def signals_came_early(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(work("a"), *waits("s"), edges=tuple(Edge(source="a", target=step_id) for step_id in ids("s")))
    for step_id in ids("s"):
        assert ledger.steps.signal("run", step_id, step_id)[0] == "kept"
    begun = play.begin("a")
    return lambda: play.commit(begun), lambda: _is("succeeded", play)


def a_plan(ledger: Ledger, graph: Graph) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    begun = play.begin(START)

    def check() -> None:
        assert {step.state for step_id, step in ledger.reader.read("run").steps.items() if step_id != START} == {"sent"}

    return lambda: play.commit(begun, outcome=Outcome(fragment=graph)), check


def a_wide_map(ledger: Ledger, like: Step) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(work("map"))
    begun = play.begin("map")
    items = ItemSteps(like="map/item", prefix="map", given=tuple(range(MANY)), window=MANY)
    graph = Graph(steps=(like, work("map/gather")), edges=row("map/item", "map/gather"), items=items, exit="map/gather")
    state = "sent" if like.kind == "work" else "waiting_signal"

    def check() -> None:
        assert {ledger.reader.read("run").steps[f"map/{n}"].state for n in (0, MANY - 1)} == {state}

    return lambda: play.commit(begun, outcome=Outcome(fragment=adopt(graph, "map", begun.spec))), check


def an_expansion_with_edges_of_older_steps(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """From steps that ended, from open ones, and to open ones; the names of others are moved."""
    third = MANY // 3
    play = Play(ledger)
    over, other, behind = ids("over", third), ids("open", third), ids("behind", third)
    steps = tuple(
        work(step_id, quorum=2 if step_id in behind else None) for step_id in ("a", "first", *over, *other, *behind)
    )
    play.plan(*steps, edges=tuple(Edge(source="first", target=step_id) for step_id in behind))
    for step_id in over:
        play.do(step_id)
    edges = [Edge(source=step_id, target=f"new{n}") for n, step_id in enumerate((*over, *other))]
    edges += [Edge(source=f"new{n}", target=step_id) for n, step_id in enumerate(behind)]
    names = {step_id: f"new{n}" for n, step_id in enumerate(over)}
    begun = play.begin("a")

    def check() -> None:
        assert play.words("new0", f"new{third}", "behind0") == "sent waiting waiting"

    graph = Graph(steps=tuple(work(f"new{n}") for n in range(2 * third)), edges=tuple(edges), names=names)
    return lambda: play.commit(begun, outcome=Outcome(fragment=graph)), check


def advance(step_id: str, root: str = "") -> Step:
    return work(step_id, kind="workflow.advance", params={"root": root} if root else {})


def a_workflow_is_cancelled(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(advance("w"))
    steps = (*(work(f"w/{n}") for n in range(2 * MANY)), advance("w/@2", "w"))
    grow(play, "w", Graph(steps=steps, edges=fan_in(tuple(f"w/{n}" for n in range(2 * MANY)), "w/@2"), exit="w/@2"))

    def check() -> None:
        assert (play.status, play.words("w/7", "w/@2")) == ("cancelling", "skipped sent")

    return lambda: ledger.runs.cancel("run"), check


def a_long_workflow_ends(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play, last = Play(ledger), "w"
    play.plan(advance("w"))
    for number in range(2, 302):
        calls = tuple(f"w/{number}.{m}" for m in range(5))
        steps = (*map(work, calls), advance(f"w/@{number}", "w"))
        edges = tuple(Edge(source=each, target=f"w/@{number}", alone=True) for each in calls)
        grow(
            play,
            last,
            Graph(steps=steps, edges=edges, exit=f"w/@{number}"),
        )
        play.do(calls[0])
        last = f"w/@{number}"
    begun = play.begin(last)
    return lambda: play.commit(begun, 1), lambda: _is("succeeded", play)


def much_is_due(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """200 lost leases, timers, lost messages and finished runs in a shard."""
    shard = shard_of("run")
    runs = [
        Play(ledger, run_id)
        for run_id in itertools.islice((name for name in ids("r", 40_000) if shard_of(name) == shard), 100)
    ]
    for play in runs:
        play.plan(
            work("lost"), work("retrying"), work("unbegun"), wait("sure", timeout_s=HOUR_S, params={"wait": WAIT})
        )
        play.begin("lost")
        play.commit(play.begin("retrying"), outcome=Outcome(status="retry", retry_in_s=HOUR_S))
    for part in (":leases", ":due", ":ready"):
        key = f"{runs[0].shard}{part}"
        for member, _ in ledger.redis.zscan_iter(key):
            ledger.redis.zadd(key, {member: 1.0})

    def sweep() -> None:
        for _ in range(10):
            ledger.leases.sweep(shard)

    return sweep, lambda: [play.status for play in runs] == ["timed_out"] * len(runs) or pytest.fail("a run is open")


def a_fork_waits_for_many(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(work("a"), *waits("s"), edges=tuple(Edge(source="a", target=step_id) for step_id in ids("s")))
    play.do("a")
    ledger.runs.cancel("run")
    fork, run_id = rewind.retry(fork_store.read(ledger, "run")), near("run")

    def check() -> None:
        steps = ledger.reader.read(run_id).steps
        assert [steps[step_id].state for step_id in ("a", "s0", f"s{MANY - 1}")] == [
            "done",
            "waiting_signal",
            "waiting_signal",
        ]

    return lambda: fork_store.make(ledger, run_id, fork, request={}, given=None, labels={}), check


def a_signal_names_many(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(*(wait(f"s{n}/x") for n in range(MANY)))
    return lambda: ledger.steps.signal("run", "x", 1), lambda: _is("waiting", play)


def a_step_reads_many(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """Under names that moved twice; every other output is a blob."""
    play = Play(ledger)
    play.plan(
        *works("s"), work("mover"), work("z", reads={step_id: step_id for step_id in ids("s")}), edges=row("mover", "z")
    )
    large = "x" * 40_000
    for n, step_id in enumerate(ids("s")[:30]):
        play.do(step_id, large if n % 2 else step_id)
    play.do(
        "s30",
        fragment=Graph(steps=(work("new0"), work("new1")), names={f"s{n}": f"s{n + 1}" for n in range(2)}, exit="new1"),
    )
    play.do("mover")
    found: list[Begun] = []

    def check() -> None:
        values = found[0].inputs
        assert len(values) == MANY
        assert (values["s0"], values["s4"], values["s5"], values["s999"]) == ("s2", "s4", large, None)

    return lambda: found.append(play.begin("z")), check


def a_log_drops_many_lines(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger)
    play.plan(work("a"))
    for _ in range(MANY // 500):
        ledger.runs.append_log("run", ['{"event":"short"}'] * 500, most=MANY, most_bytes=10**6)
    key = f"{play.shard}:run:run:logs"

    def check() -> None:
        assert ledger.redis.xlen(key) == 1

    return lambda: ledger.runs.append_log(
        "run", ['{"event":"' + "x" * 10**6 + '"}'], most=MANY, most_bytes=10**6
    ), check


def an_inbox_is_read(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    play = Play(ledger, labels={"kind": "a"})
    play.plan(*waits("s"))
    found: list[InboxItem] = []

    def check() -> None:
        assert {item.step for item in found} == {*ids("s")}

    return lambda: found.extend(inbox.iterate(ledger, InboxFilter(labels={"kind": "a"}))), check


def runs_are_listed(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    names = [name for name in ids("r", 100_000) if shard_of(name) == 0][: MANY // 2]
    for name in names:
        Play(ledger, name, labels={"kind": "needle" if name == names[0] else "a"})
    found: list[str] = []

    def check() -> None:
        assert found == [names[0]]

    return lambda: found.extend(run.run_id for run in listing.iterate(ledger, RunFilter(text="needle"))), check


def schedules_are_listed(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """Many lie in one shard, as those of one session do."""
    store, many = ScheduleStore(ledger), MANY // 3
    fields = {
        **FIELDS,
        "spec": Schedule(cron="0 9 * * *", chain="c").model_dump_json(),
        "offer": to_json({"fields": {}}),
    }
    for n in range(many):
        store.put(7, scope_of("acme", f"t{n}"), fields, "{}", None)
    store.put(7, scope_of("other", "t"), fields, "{}", None)
    found: list[ScheduleRecord] = []

    def check() -> None:
        assert {each.name for each in found} == {f"t{n}" for n in range(many)}

    return lambda: found.extend(store.find("acme")), check


def a_schedule_fires(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """As many times as one look starts, half of which waited."""
    store, scope, half = ScheduleStore(ledger), scope_of("acme", "t"), MOST_STARTED // 2
    shard = shard_of(scope)
    offer = offer_of(
        kind="turn", tenant="acme", timeout_s=60, max_attempts=3, max_steps=10, retention_s=60, queue="coordinator"
    )
    fields = {**FIELDS, "spec": "{}", "offer": to_json(offer)}
    store.put(shard, scope, fields, "{}", None)
    store.add_pending(scope, range(half), None)
    mark = str(ledger.redis.hget(f"{shard_key(None, shard)}:schedule:{scope}", "mark"))
    items = [
        {"at": str(n), "run": run_id_at(shard, scope, n), "request": "{}", "labels": "{}"} for n in range(2 * half)
    ]
    items = [{**item, "pending": to_json({"at": item["at"]})} if n < half else item for n, item in enumerate(items)]
    fired: list[Fired | Exception] = []

    def check() -> None:
        assert [outcome for result in fired if isinstance(result, Fired) for outcome, _ in result.outcomes] == [
            "new"
        ] * 2 * half

    return lambda: fired.extend(store.fire([Firing(shard, scope, mark, "allow", items, read="")])), check


def a_memory_of_many_namespaces_is_cleared(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    bank = MemoryStore(ledger, tenant="acme")
    for namespace in ids("n", 300):
        bank.store_memory("a", 1, namespace)
        bank.store_memory("b", 1, namespace, ttl_s=HOUR_S)
    cleared: list[int] = []

    def check() -> None:
        assert (cleared, bank.namespaces()) == ([600], [])

    return lambda: cleared.append(bank.clear_memories()), check


def messages_are_restored(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    sessions = Sessions(ledger, "acme")
    entries = [HistoryEntry(role="user", content=f"{n}", ts=1.0, run_id="r") for n in range(3 * MANY)]

    def check() -> None:
        assert [entry.content for entry in sessions.history("s")] == [entry.content for entry in entries]

    return lambda: sessions.restore("s", entries), check


def calls_may_go(ledger: Ledger) -> tuple[Callable[[], object], Callable[[], object]]:
    """Many model calls wait for two limits and three budgets, and one that blocked all of them ends."""
    stage = Stage(ledger.redis)
    rates = Rates(rpm=10**6, tpm=10**9, concurrency=1)
    budgets = Budgets(run=Budget(usd=10**6), tenant=Budget(usd=10**6), day=Budget(usd=10**6))
    narrow = Limits(models={MODEL: rates}, tenants={"acme": rates}, budgets=budgets)
    wide_rates = Rates(rpm=10**6, tpm=10**9, concurrency=10**4)
    wide = Limits(models={MODEL: wide_rates}, tenants={"acme": wide_rates}, budgets=budgets)
    stage.goes("first", narrow, usd=1, tenant="acme")
    stage.waits("second", narrow, usd=1, tenant="acme")
    for name in ids("r", 200):
        stage.waits(f"{name}/s", wide, usd=1, tenant="acme")
    called: list[str] = []

    def act() -> None:
        called.extend(stage.ends("first", usd=1))
        stage.ends("second", usd=1)
        for _ in range(30):
            called.extend(stage.calls())

    def check() -> None:
        assert {*called} == {"second", *(f"{name}/s" for name in ids("r", 200))}
        ledger.redis.flushdb()

    return act, check


DOORS: dict[str, Door] = {
    "a map fails and the run goes on": a_map_fails,
    "a map whose items are sent fails": lambda ledger: a_map_fails(ledger, window=MANY, on_error="jump"),
    "a map whose items have added steps fails": a_map_of_maps_fails,
    "a scope fails": a_scope_fails,
    "steps follow one": lambda ledger: many_follow(ledger, works("s")),
    "waits follow a step": lambda ledger: many_follow(ledger, waits("s")),
    "a row is skipped": a_row_is_skipped,
    "a quorum is reached": a_quorum_is_reached,
    "a join is late": a_join_is_late,
    "a join of a map is late": lambda ledger: a_join_is_late(ledger, of_map=True),
    "signals came early": signals_came_early,
    "a plan of many steps": lambda ledger: a_plan(ledger, Graph(steps=works("s"))),
    "a plan of many joins": lambda ledger: a_plan(ledger, Graph(steps=works("s", deadline_s=HOUR_S))),
    "a wide map": lambda ledger: a_wide_map(ledger, work("map/item")),
    "a wide map of waits": lambda ledger: a_wide_map(ledger, wait("map/item", timeout_s=HOUR_S, params={"wait": WAIT})),
    "edges of older steps": an_expansion_with_edges_of_older_steps,
    "a workflow is cancelled": a_workflow_is_cancelled,
    "a long workflow ends": a_long_workflow_ends,
    "much is due": much_is_due,
    "a fork waits for many": a_fork_waits_for_many,
    "a signal names many": a_signal_names_many,
    "a step reads many": a_step_reads_many,
    "a log drops many lines": a_log_drops_many_lines,
    "an inbox is read": an_inbox_is_read,
    "runs are listed": runs_are_listed,
    "schedules are listed": schedules_are_listed,
    "a schedule fires": a_schedule_fires,
    "a memory of many namespaces is cleared": a_memory_of_many_namespaces_is_cleared,
    "messages are restored": messages_are_restored,
    "calls may go": calls_may_go,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_call_takes_a_bounded_number_of_commands(ledger: Ledger, door: str) -> None:
    act, check = DOORS[door](ledger)

    assert commands(ledger.redis, act) <= MAX_COMMANDS

    check()
    assert list(ledger.redis.scan_iter("*:unfinished*")) == [], "nothing is left"


def test_a_call_reads_a_bounded_number_of_bytes_of_labels_and_requests(ledger: Ledger) -> None:
    play = Play(ledger, text="x" * 200_000, labels={f"label{n}": "v" * 500 for n in range(40)})
    play.plan(*(wait(step_id) for step_id in ids("s", 100)))
    items: list[InboxItem] = []

    assert (
        commands(ledger.redis, lambda: items.extend(inbox.iterate(ledger, InboxFilter(labels={"label7": "v" * 500}))))
        <= 100
    )

    assert {item.step for item in items} == {*ids("s", 100)}


# --- what is left to later calls ----------------------------------------------------------------------------------------------


def half(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a map fail, and the process that recorded it die after its first call."""
    with monkeypatch.context() as patch:
        patch.setattr(play.ledger.caller, "finish", lambda *_, **__: Finished([], "running", [], has_posts=False))
        play.commit(play.begin("map/0"), outcome=failed())
    assert play.ledger.redis.hget(f"{play.shard}:run:run", "unfinished") == "1"


def test_steps_that_are_being_stopped_count_as_skipped_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for act in ("begin", "commit", "read", "poll", "snapshot", "records", "status"):
        ledger.redis.flushdb()
        play = Play(ledger)
        mapped(play, window=MANY)
        last = f"map/{MANY - 1}"
        begun = play.begin(last)
        half(play, monkeypatch)

        if act == "begin":
            assert play.refusal(f"map/{MANY - 2}") == "over"
        elif act == "commit":
            assert play.commit(begun).result == "stale"
        elif act == "read":
            assert play.words(last, "map/gather", "b") == "skipped failed sent"
        elif act == "poll":
            assert [state for state, *_ in ledger.reader.outcomes("run", [last])] == ["skipped"]
        elif act == "snapshot":
            assert ledger.reader.snapshot("run").steps[last].state == "skipped"
        elif act == "records":
            assert ledger.reader.records("run", [last])[last].state == "skipped"
        else:
            assert play.status == "running"
        assert ledger.redis.hget(f"{play.shard}:run:run", "unfinished") is None


def test_a_sweep_does_what_a_dead_process_left_and_sends_what_follows(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    mapped(play, window=2)
    half(play, monkeypatch)
    ledger.redis.zadd(f"{play.shard}:unfinished", {"run": 1.0}, xx=True)

    assert sent(play.sweep()) == ["b"]

    assert play.words("map/1", f"map/{MANY - 1}", "map/gather") == "skipped skipped failed"
    play.do("b")
    assert play.status == "succeeded"


def test_the_sweep_leaves_other_entries_of_such_a_run_for_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    mapped(play, window=MANY)
    begun, retrying = play.begin("map/7"), play.begin("map/8")
    play.commit(retrying, outcome=Outcome(status="retry", retry_in_s=HOUR_S))
    half(play, monkeypatch)
    ledger.redis.zadd(f"{play.shard}:leases", {begun.lease: 1.0}, xx=True)
    ledger.redis.zadd(f"{play.shard}:due", {"retry|run|map/8": 1.0}, xx=True)

    swept = play.sweep()

    assert (swept.lost, swept.fired) == (0, 0)
    assert play.words("map/7", "map/8") == "skipped skipped"


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_such_a_run_can_be_ended(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    play = Play(ledger)
    mapped(play, window=MANY)
    half(play, monkeypatch)

    if how == "cancel":
        assert ledger.runs.cancel("run") == "cancelled"
    else:
        play.come_due("deadline")

    assert play.status == ("cancelled" if how == "cancel" else "timed_out")
    assert {step.state for step in ledger.reader.read("run").steps.values()} == {"done", "failed", "skipped"}
    while ledger.redis.exists(f"{play.shard}:clearing"):
        play.sweep()
    assert list(ledger.redis.scan_iter("*:unfinished*")) == []


@pytest.mark.parametrize("act", ["commit", "fail", "begin", "lose", "cancel"])
def test_a_worker_that_does_not_know_of_it_does_no_harm(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """As one of an older version: its scripts do not read the field, and do all at once."""
    play = Play(ledger)
    mapped(play, window=MANY)
    begun = play.begin(f"map/{MANY - 1}")
    half(play, monkeypatch)
    with monkeypatch.context() as patch:
        for name, known, unknown in (
            ("run", "'unfinished', unpack(COUNTS)", "'unknown', unpack(COUNTS)"),
            ("lib", "local MAX_CALLS = 1000", "local MAX_CALLS = 1000000"),
        ):
            text = scripts.TEXTS[f"ledger/{name}"]
            assert text.count(known) == 1
            patch.setitem(scripts.TEXTS, f"ledger/{name}", text.replace(known, unknown))
        patch.setattr(scripts.SCRIPTS, "_known", {})
        if act == "cancel":
            assert ledger.runs.cancel("run") == "cancelled"
        elif act == "begin":
            play.begin(f"map/{MANY - 2}")
        elif act == "lose":
            assert play.lose_lease(begun).lost == 1
        else:
            assert play.commit(begun, outcome=failed() if act == "fail" else Outcome()).result == "ok"

    ledger.redis.zadd(f"{play.shard}:unfinished", {"run": 1.0}, xx=True)
    play.sweep()

    assert list(ledger.redis.scan_iter("*:unfinished*")) == []
    if act == "cancel":
        assert play.status == "cancelled"
        return
    states = {step_id: step.state for step_id, step in ledger.reader.read("run").steps.items()}
    ended = {"commit": "done", "fail": "failed"}.get(act, "skipped")
    assert (states[f"map/{MANY - 1}"], states["map/gather"], states["b"]) == (ended, "failed", "sent")
    assert {states[f"map/{n}"] for n in range(1, MANY - 1)} == {"skipped"}
    play.do("b")
    assert play.status == "succeeded"


def test_what_cannot_be_done_costs_its_run_alone_and_it_can_be_cancelled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Play(ledger, near("run"))
    other.plan(work("a"))
    begun = other.begin("a")
    play = Play(ledger)
    mapped(play, window=MANY)
    half(play, monkeypatch)
    ledger.redis.set(f"{play.shard}:run:run:unfinished", "broken")
    ledger.redis.zadd(f"{play.shard}:unfinished", {"run": 1.0}, xx=True)

    swept = other.lose_lease(begun)

    assert (swept.lost, [(fault.duty, fault.item) for fault in swept.faults]) == (1, [("unfinished", "run")])
    assert sent(swept) == ["a"]
    with pytest.raises(ResponseError):
        play.begin("map/1")
    assert play.words("map/gather") != "", "it can be read"
    assert ledger.runs.cancel("run") == "cancelled"
    ledger.runs.cancel_all(["run"])
    other.do("a")
    assert other.status == "succeeded"
