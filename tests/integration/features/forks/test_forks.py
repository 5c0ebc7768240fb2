"""A fork takes over what is upstream, does the rest anew in the graph as it was, and is made whole or not at all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import cast

import pytest
from redis import Redis

from cantata.errors import CantataError, ConfigError, UnknownRunError
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as planning
from cantata.flows.forks import Fork, OutEdge
from cantata.flows.graph import Edge, Graph, ItemSteps
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ready
from cantata.ledger.redis.keys import definitions_digest, definitions_key, run_key, shard_key, shard_of
from tests.integration.state.play import Play, fan_in, row, sent, wait, work


class Anew(Play):
    """The run that a fork of another is."""

    def __init__(self, source: Play, from_step: str | None = None) -> None:
        self.ledger = source.ledger
        self.shard = source.shard
        self.run_id = near(source.run_id)
        past = fork_store.read(source.ledger, source.run_id)
        self.fork = planning.retry(past) if from_step is None else planning.fork(past, from_step)
        self.sends = [each.step_id for each in made(source.ledger, self.run_id, self.fork)]

    def kept(self) -> list[str]:
        """The steps that were taken over, besides the first."""
        over = self.ledger.reader.read(self.run_id).steps.values()
        return sorted(
            step.step_id for step in over if step.attempt == 0 and step.state == "done" and step.step_id != "@start"
        )


def near(run_id: str) -> str:
    """A run id in the shard of another."""
    return next(each for number in itertools.count() if shard_of(each := f"{run_id}-{number}") == shard_of(run_id))


def made(ledger: Ledger, run_id: str, fork: Fork) -> tuple[Ready, ...]:
    return fork_store.make(ledger, run_id, fork, request={}, given="given anew", labels={"forked_from": fork.source})


def diamond(ledger: Ledger) -> Play:
    """a before b and c, both before d; e beside them."""
    play = Play(ledger)
    edges = (*fan_in(("b", "c"), "d"), *row("a", "b"), *row("a", "c"))
    play.plan(
        work("a"),
        work("b"),
        work("c"),
        work("d", reads={"b": "b", "c": "c"}),
        work("e"),
        edges=edges,
        terminals=("d", "e"),
    )
    for step_id in "abcde":
        play.do(step_id, step_id.upper())
    return play


def test_a_step_and_all_behind_it_are_done_anew_and_nothing_else(ledger: Ledger) -> None:
    play = diamond(ledger)

    anew = Anew(play, "b")

    assert anew.sends == ["b"]
    assert anew.kept() == ["a", "c", "e"]
    assert sent(anew.do("b", "other")) == ["d"]
    assert anew.begin("d").inputs == {"b": "other", "c": "C"}
    record = ledger.reader.read(anew.run_id)
    assert (record.terminals, record.usage.model_calls, record.labels) == (("d", "e"), 0, {"forked_from": "run"})
    assert play.words(*"abcde") == "done done done done done"


def test_a_fork_ends_as_its_last_step_does(ledger: Ledger) -> None:
    anew = Anew(diamond(ledger), "d")

    anew.do("d", "again")

    assert anew.status == "succeeded"
    assert anew.output("a") == "A"
    assert anew.events()[:2] == ["accepted", "expanded"]
    assert anew.output("@start") == "given anew"


def test_a_fork_of_a_fork_is_one_too(ledger: Ledger) -> None:
    anew = Anew(diamond(ledger), "d")
    anew.do("d", "again")

    again = Anew(anew, "b")

    assert again.sends == ["b"]
    assert again.kept() == ["a", "c", "e"]


def whole(ledger: Ledger, run_id: str) -> dict[str, object]:
    """All that lies in Redis of a run but times and names of calls."""
    key, found = run_key(ledger.redis, run_id), cast("Iterator[str]", ledger.redis.scan_iter(match=f"*:run:{run_id}*"))
    parts: dict[str, object] = {}
    for name in found:
        match ledger.redis.type(name):
            case "hash":
                parts[name.removeprefix(key)] = ledger.redis.hgetall(name)
            case "list":
                parts[name.removeprefix(key)] = ledger.redis.lrange(name, 0, -1)
            case _:
                log = cast("list[tuple[str, dict[str, str]]]", ledger.redis.xrange(name))
                parts[name.removeprefix(key)] = [(each, event["t"], event["s"], event["d"]) for each, event in log]
    timed = ("created_at", "started_at", "deadline_at", "accepted_by", "priority", "labels")
    parts[""] = {field: value for field, value in cast("dict[str, str]", parts[""]).items() if field not in timed}
    parts[":state"] = {step: state.split(" ")[:7] for step, state in cast("dict[str, str]", parts[":state"]).items()}
    return parts


def half_mapped(ledger: Ledger) -> Play:
    """A run with a map of which some items failed, an output that is kept apart, and a step nobody asked for."""
    play = Play(ledger)
    edges = (*row("map", "b"), Edge(source="a", target="never", label="other"))
    play.plan(work("a"), work("never"), work("map"), work("b"), edges=edges, terminals=("b",))
    play.do("a", "x" * 50_000)
    items = ItemSteps(like="map/item", prefix="map", given=tuple(range(9)), window=2)
    like, gather = work("map/item", window="map", scope="map"), work("map/gather")
    play.do("map", fragment=Graph(steps=(like, gather), edges=row(like.id, gather.id), items=items, exit=gather.id))
    play.do("map/0", 1)
    play.fail("map/1")
    return play


def test_a_fork_that_is_told_twice_is_one_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = planning.retry(fork_store.read(ledger, half_mapped(ledger).run_id))
    first = made(ledger, near("run"), fork)
    once = whole(ledger, near("run"))
    assert made(ledger, near("run"), fork) == (), "it is there"
    for key in ledger.redis.scan_iter(match=f"*:run:{near('run')}*"):
        ledger.redis.delete(key)
    ledger.redis.zrem(f"{shard_key(None, shard_of('run'))}:ready", *(f"{near('run')}|{each.step_id}" for each in first))
    ledger.redis.hincrby(definitions_key(None, shard_of("run"), definitions_digest("{}")), "runs", -1)
    dropped = itertools.cycle((True, False))
    monkeypatch.setattr(
        "cantata.operation.fault_points.at", lambda point: point in ("stage-replied", "fork-replied") and next(dropped)
    )

    again = made(ledger, near("run"), fork)

    assert [(each.step_id, each.spec) for each in again] == [(each.step_id, each.spec) for each in first]
    assert whole(ledger, near("run")) == once, "though the reply to each call was lost, and it was told again"


def before_the_fork(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], float]) -> None:
    """Have something happen to the place of the stage before its fork is made."""
    call = ledger.caller.call

    def changed(name: str, run_id: str, *args: str) -> object:
        if name == "forks/fork":
            assert act(json.loads(args[0])["place"]) == 1
        return call(name, run_id, *args)

    monkeypatch.setattr(ledger.caller, "call", changed)


@pytest.mark.parametrize("part", [":out", ":state", ":logged", ":log", ":backlog:map"])
def test_nothing_is_made_of_what_was_evicted_while_it_was_laid_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    fork = planning.retry(fork_store.read(ledger, half_mapped(ledger).run_id))
    before_the_fork(
        ledger,
        monkeypatch,
        lambda place: ledger.redis.delete(f"{run_key(None, 'run').removesuffix('run')}{place}{part}"),
    )

    with pytest.raises(CantataError, match="evicted"):
        made(ledger, near("run"), fork)

    assert list(ledger.redis.scan_iter(match=f"*:run:{near('run')}*")) == []


def test_what_was_laid_out_by_one_who_died_expires(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = planning.retry(fork_store.read(ledger, half_mapped(ledger).run_id))
    before_the_fork(ledger, monkeypatch, lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        made(ledger, near("run"), fork)

    left = list(ledger.redis.scan_iter(match=f"*:run:{near('run')}*"))
    assert len(left) > 10
    assert all(0 < ledger.redis.pttl(key) <= 600_000 for key in left)


MAX_COMMANDS = 600  # of Redis in one call, which then takes it a few milliseconds


def most_commands(redis: Redis, make: Callable[[], object]) -> int:
    """The most commands that one script runs: counted, since times say little on a busy machine."""
    redis.config_set("slowlog-max-len", 100_000)
    redis.config_set("slowlog-log-slower-than", 0)
    redis.slowlog_reset()
    make()
    told = [str(each["command"]) for each in reversed(redis.slowlog_get(100_000))]
    redis.config_set("slowlog-log-slower-than", 10_000)
    calls = [place for place, command in enumerate(told) if "EVAL" in command[:6]]
    assert calls
    return max(b - a for a, b in pairwise([-1, *calls]))


@pytest.mark.parametrize("how", ["taken over", "done anew"])
def test_a_fork_of_a_large_run_keeps_nobody_waiting(ledger: Ledger, how: str) -> None:
    play, ids = Play(ledger), tuple(f"s{n}" for n in range(4000))
    edges = tuple(Edge(source="a", target=each, label="other") for each in ids) if how == "taken over" else ()
    play.plan(work("a"), *map(work, ids), work("b"), edges=(*edges, *row("a", "b")), terminals=("b",))
    play.do("a")
    if how == "taken over":
        play.do("b")
    else:
        ledger.runs.cancel("run")
    past = fork_store.read(ledger, "run")
    fork = planning.retry(past) if how == "done anew" else planning.fork(past, "b")

    assert most_commands(ledger.redis, lambda: made(ledger, near("run"), fork)) <= MAX_COMMANDS


def test_a_fork_whose_maker_died_is_swept(ledger: Ledger) -> None:
    anew = Anew(diamond(ledger), "b")

    assert [step.step_id for step in anew.lose_message("b").overdue] == ["b"]


def test_nothing_is_made_of_a_run_that_expired_meanwhile(ledger: Ledger) -> None:
    diamond(ledger)
    fork = planning.fork(fork_store.read(ledger, "run"), "b")
    for key in ledger.redis.scan_iter(match="*:run:run*"):
        ledger.redis.delete(key)

    with pytest.raises(UnknownRunError):
        made(ledger, near("run"), fork)

    assert list(ledger.redis.scan_iter(match=f"*:run:{near('run')}*")) == []
    ledger.redis.flushdb()  # the shard still lists what was deleted


def test_a_step_is_named_by_the_end_of_its_id(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("flow"))
    play.do("flow", fragment=Graph(steps=(work("flow/a"), work("flow/b/c"), work("flow/d/c")), exit="flow/d/c"))
    for step_id in ("flow/a", "flow/b/c", "flow/d/c"):
        play.do(step_id)
    past = fork_store.read(ledger, "run")

    assert planning.fork(past, "a") == planning.fork(past, "flow/a")
    assert planning.fork(past, "b/c") == planning.fork(past, "flow/b/c")
    with pytest.raises(ConfigError, match="'c' may be any of several steps of run run: 'flow/b/c', 'flow/d/c'"):
        planning.fork(past, "c")
    with pytest.raises(ConfigError, match="has no step 'low/a'"):
        planning.fork(past, "low/a")


def test_what_cannot_be_forked_is_told(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=(Edge(source="a", target="b", label="left"),))
    with pytest.raises(ConfigError, match="run run is running; wait until it is over"):
        fork_store.read(ledger, "run")
    play.do("a")
    past = fork_store.read(ledger, "run")

    with pytest.raises(ConfigError, match="no step 'aa'; did you mean 'a'"):
        planning.fork(past, "aa")
    with pytest.raises(ConfigError, match="'b' was skipped, since nothing led to it"):
        planning.fork(past, "b")
    with pytest.raises(ConfigError, match=r"^run run left nothing to retry: its status is 'succeeded'"):
        planning.retry(past)
    with pytest.raises(UnknownRunError):
        fork_store.read(ledger, "nobody")


# --- retries ----------------------------------------------------------------------------------------------------------


def test_a_retry_does_what_failed_and_what_was_stopped(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a"), work("b"), work("c"), work("d"), edges=(*fan_in(("b", "c"), "d"), *row("a", "b"), *row("a", "c"))
    )
    play.do("a")
    begun = play.begin("c")
    play.fail("b")
    assert begun

    anew = Anew(play)

    assert sorted(anew.sends) == ["b", "c"]
    assert anew.kept() == ["a"]
    for step_id in "bcd":
        anew.do(step_id)
    assert anew.status == "succeeded"


def test_a_retry_of_a_cancelled_run_goes_on_where_it_was(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("b"), work("c"), edges=row("a", "b", "c"))
    play.do("a")
    ledger.runs.cancel("run")

    anew = Anew(play)

    assert anew.sends == []
    assert anew.words("a", "b", "c") == "done waiting_signal waiting"
    assert ledger.steps.signal(anew.run_id, "b", True)[0] == "taken"
    anew.do("c")
    assert anew.status == "succeeded"


def test_failures_that_the_graph_bore_stand(ledger: Ledger) -> None:
    play = Play(ledger)
    steps = work("skips", on_error="skip"), work("jumps", on_error="jump"), work("mends"), work("fails")
    play.plan(
        *steps, edges=(Edge(source="jumps", target="mends", label="failed"), Edge(source="skips", target="fails"))
    )
    play.fail("skips")
    play.fail("jumps")
    play.do("mends")
    play.fail("fails")

    anew = Anew(play)

    assert anew.sends == ["fails"]
    assert anew.words("skips", "jumps", "mends") == "failed failed done"


def test_a_run_that_never_began_is_planned_anew(ledger: Ledger) -> None:
    play = Play(ledger)
    ledger.runs.cancel("run")

    anew = Anew(play)

    assert anew.sends == ["@start"]
    anew.plan(work("a"))
    anew.do("a")
    assert anew.status == "succeeded"


def test_all_of_a_run_may_be_planned_anew(ledger: Ledger) -> None:
    anew = Anew(loop(ledger, 2), "@start")

    assert anew.sends == ["@start"]
    assert list(ledger.reader.read(anew.run_id).steps) == ["@start"]
    assert sent(anew.plan(work("body#1"), work("out"), edges=row("body#1", "out"))) == ["body#1"]
    anew.do("body#1")
    anew.do("out")


# --- growth -----------------------------------------------------------------------------------------------------------


def rounds(ledger: Ledger, *, last: str = "done") -> Play:
    """An agent that called a tool twice and then answered, before another step."""
    play = Play(ledger)
    play.plan(
        work("x"),
        work("agent"),
        work("after", reads={"agent": "agent"}),
        edges=row("x", "agent", "after"),
        terminals=("after",),
    )
    play.do("x")
    play.do("agent", 0, fragment=Graph(steps=(work("t0"), work("r1")), edges=row("t0", "r1"), exit="r1"))
    play.do("t0")
    play.do("r1", 1, fragment=Graph(steps=(work("t1"), work("r2")), edges=row("t1", "r2"), exit="r2"))
    play.do("t1")
    if last == "failed":
        play.fail("r2")
    else:
        play.do("r2", "answer")
        play.do("after", "end")
    return play


def test_a_step_that_grew_takes_back_what_it_grew(ledger: Ledger) -> None:
    anew = Anew(rounds(ledger), "agent")

    assert anew.sends == ["agent"]
    assert sorted(ledger.reader.read(anew.run_id).steps) == ["@start", "after", "agent", "x"]
    anew.do("agent", fragment=Graph(steps=(work("t0"), work("r1")), edges=row("t0", "r1"), exit="r1"))
    anew.do("t0")
    assert sent(anew.do("r1", "short")) == ["after"]
    assert anew.begin("after").inputs == {"agent": "short"}


def test_the_last_round_may_be_done_anew_alone(ledger: Ledger) -> None:
    anew = Anew(rounds(ledger), "r2")

    assert anew.sends == ["r2"]
    assert anew.kept() == ["agent", "r1", "t0", "t1", "x"]


def test_a_failed_round_is_tried_again_and_those_before_stand(ledger: Ledger) -> None:
    anew = Anew(rounds(ledger, last="failed"))

    assert anew.sends == ["r2"]
    assert anew.kept() == ["agent", "r1", "t0", "t1", "x"]
    assert sent(anew.do("r2", "answer")) == ["after"]
    assert anew.begin("after").inputs == {"agent": "answer"}


def test_a_round_in_between_takes_back_the_later_ones(ledger: Ledger) -> None:
    anew = Anew(rounds(ledger), "t0")

    assert anew.sends == ["t0"]
    assert sorted(ledger.reader.read(anew.run_id).steps) == ["@start", "after", "agent", "r1", "t0", "x"]
    anew.do("t0")
    assert sent(anew.do("r1", "now")) == ["after"]


def mapped(count: int, *, window: int = 2, on_error: str = "abort") -> Graph:
    """A map as the chains grow it."""
    item = work("map/*", on_error=on_error, window="map", scope="map")
    return Graph(
        steps=(item, work("map/gather")),
        edges=(Edge(source="map/*", target="map/gather", wakes=False),),
        items=ItemSteps(like="map/*", prefix="map", given=tuple(range(count)), window=window),
        exit="map/gather",
    )


def test_finished_items_of_a_map_stand(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"), work("after"), edges=row("map", "after"))
    play.do("map", 6, fragment=mapped(6))
    play.do("map/0", "zero")
    play.do("map/1", "one")
    play.do("map/2", "two")
    play.fail("map/3")
    assert play.status == "failed"

    anew = Anew(play)

    assert sorted(anew.sends) == ["map/3", "map/4"]
    assert anew.words("map/5") == "ready"
    assert sent(anew.do("map/4")) == ["map/5"]
    begun = anew.begin("map/3")
    assert begun.given == 3
    anew.commit(begun)
    assert sent(anew.do("map/5")) == ["map/gather"]
    assert sent(anew.do("map/gather")) == ["after"]


def test_an_item_that_grew_is_under_way_in_its_window(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", 4, fragment=mapped(4))
    turn = work("map/0/r1", window="map", scope="map")
    play.do(
        "map/0",
        fragment=Graph(
            steps=(work("map/0/t0", scope="map/0"), turn), edges=row("map/0/t0", "map/0/r1"), exit="map/0/r1"
        ),
    )
    play.do("map/1")
    play.do("map/0/t0")
    play.fail("map/0/r1")

    anew = Anew(play)

    assert sorted(anew.sends) == ["map/0/r1", "map/2"]
    assert anew.kept() == ["map", "map/0", "map/0/t0", "map/1"]
    assert sent(anew.do("map/0/r1")) == ["map/3"]
    anew.do("map/2")
    assert sent(anew.do("map/3")) == ["map/gather"]


def test_one_item_may_be_done_anew_and_a_map_grows_anew(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", 3, fragment=mapped(3))
    for index in range(3):
        play.do(f"map/{index}", index)
    play.do("map/gather")

    anew = Anew(play, "map/1")

    assert anew.sends == ["map/1"]
    assert anew.kept() == ["map", "map/0", "map/2"]
    assert sent(anew.do("map/1", "other")) == ["map/gather"]
    anew.do("map/gather")
    whole = Anew(anew, "map")
    assert sorted(ledger.reader.read(whole.run_id).steps) == ["@start", "map"]
    assert sent(whole.do("map", 2, fragment=mapped(2))) == ["map/0", "map/1"]


def loop(ledger: Ledger, most: int) -> Play:
    """body and branch go round and round, each round expanded by the branch before; out is behind."""
    play = Play(ledger)
    edges = (Edge(source="body#1", target="branch#1"), Edge(source="branch#1", target="out", label="false"))
    names = {"body": "body#1", "branch": "branch#1"}
    steps = work("body#1"), work("branch#1"), work("out", reads={"body": "body"})
    play.do("@start", fragment=Graph(steps=steps, edges=edges, names=names))
    for n in range(1, most + 1):
        play.do(f"body#{n}", n)
        if n < most:
            play.do(f"branch#{n}", True, fragment=another_round(n + 1))
    play.do(f"branch#{most}", False, takes=("done", "false"))
    play.do("out", "end")
    return play


def another_round(n: int) -> Graph:
    return Graph(
        steps=(work(f"body#{n}"), work(f"branch#{n}")),
        edges=row(f"body#{n}", f"branch#{n}"),
        names={"body": f"body#{n}", "branch": f"branch#{n}"},
        exit=f"branch#{n}",
        scoped=False,
    )


def test_a_loop_is_done_anew_from_a_round(ledger: Ledger) -> None:
    anew = Anew(loop(ledger, 3), "body#2")

    assert anew.sends == ["body#2"]
    assert sorted(ledger.reader.read(anew.run_id).steps) == [
        "@start",
        "body#1",
        "body#2",
        "branch#1",
        "branch#2",
        "out",
    ]
    anew.do("body#2", "two")
    assert sent(anew.do("branch#2", False, takes=("done", "false"))) == ["out"]
    assert anew.begin("out").inputs == {"body": "two"}


def test_a_loop_is_named_by_its_last_round_or_done_from_its_first(ledger: Ledger) -> None:
    play = loop(ledger, 3)

    last, first = Anew(play, "body"), planning.fork(fork_store.read(ledger, "run"), "branch#1")

    assert last.sends == ["body#3"]
    assert {each.step_id for each in first.restarted} == {"branch#1", "out"}
    assert first.names["body"] == "body#1"
    assert first.edges["branch#1"] == [OutEdge("out", "false", True)]


def test_a_scope_that_failed_is_tried_again_inside(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("parent"), work("after"), edges=row("parent", "after"))
    inside = work("x", scope="parent"), work("y", scope="parent"), work("end")
    play.do(
        "parent",
        fragment=Graph(steps=inside, edges=(Edge(source="x", target="end", wakes=False), *row("y", "end")), exit="end"),
    )
    play.fail("x")
    assert play.words("x", "y", "end", "after") == "failed skipped failed skipped"

    anew = Anew(play)

    assert sorted(anew.sends) == ["x", "y"]
    anew.do("x")
    assert sent(anew.do("y")) == ["end"]
    assert sent(anew.do("end")) == ["after"]


def test_a_scope_whose_failure_was_borne_stands(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("parent"), work("after"), edges=row("parent", "after"))
    inside = work("x", scope="parent"), work("y", scope="parent"), work("end", on_error="skip")
    play.do("parent", fragment=Graph(steps=inside, edges=fan_in(("x", "y"), "end"), exit="end"))
    play.fail("x")
    play.fail("after")

    anew = Anew(play)

    assert anew.sends == ["after"]
    assert anew.words("x", "y", "end") == "failed skipped failed"


def test_growth_behind_what_was_over_waits_for_it_again(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("early"), work("parent"))
    play.do("early", "first")
    play.do("parent", fragment=Graph(steps=(work("x", reads={"early": "early"}),), edges=row("early", "x")))
    play.do("x")

    anew = Anew(play, "early")

    assert anew.sends == ["early"]
    assert anew.kept() == ["parent"]
    assert sent(anew.do("early", "second")) == ["x"]
    assert anew.begin("x").inputs == {"early": "second"}


def test_terminals_that_growth_named_are_those_before(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("route"), terminals=("route",))
    play.do("route", fragment=Graph(steps=(work("ann"),), edges=row("route", "ann"), terminals=("ann",)))
    play.do("ann")

    assert ledger.reader.read(Anew(play, "ann").run_id).terminals == ("ann",)
    fork = planning.fork(fork_store.read(ledger, "run"), "route")
    assert json.loads(fork.terminals) == ["route"]


# --- joins ------------------------------------------------------------------------------------------------------------


def test_a_quorum_counts_what_was_taken_over(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), work("join", quorum=2), edges=fan_in(("a", "b", "c"), "join"))
    play.do("a")
    play.fail("b")

    anew = Anew(play)

    assert sorted(anew.sends) == ["b", "c"]
    assert sent(anew.do("b")) == ["join"]
    assert anew.words("c") == "failed"


def test_a_deadline_runs_anew(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("join", deadline_s=60.0), edges=fan_in(("a", "b"), "join"))
    play.do("a")
    play.fail("b")

    anew = Anew(play)
    swept = anew.come_due("join", "join")

    assert [step.step_id for _, step in swept.sends] == ["join"]


def test_large_outputs_are_taken_over_and_only_those(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    play.do("a", "a" * 40_000)
    play.do("b", "b" * 40_000)

    anew = Anew(play, "b")

    assert anew.output("a") == "a" * 40_000
    assert ledger.redis.hlen(f"{play.shard}:run:{anew.run_id}:blobs") == 1
