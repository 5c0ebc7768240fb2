"""A large run is read in pieces: nobody else waits for it, and no state is told that the run cannot have had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import cast

import pytest
from redis import Redis

from cantata.errors import UnknownRunError
from cantata.features.forks import fork_store
from cantata.features.sessions.sessions import Sessions
from cantata.flows.graph import Graph, ItemSteps, Outcome
from cantata.ledger import run_reader
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import RunRecord
from cantata.ledger.redis import pieces
from cantata.ledger.redis.keys import run_key, shard_key
from tests.examples import FEWER
from tests.integration.state.play import Play, failed, row, wait, work

WIDTH = 30_000 if FEWER == 1 else 12_000
BOUND_MS = 5.0  # that a read may keep Redis from others
READS = 6


def large(ledger: Ledger, run_id: str = "run", *, width: int = WIDTH, window: int = 2) -> Play:
    """A run with a map whose items wait, and a person's step with a long id."""
    play = Play(ledger, run_id)
    play.plan(work("map"), work("b"), wait("flow/ask"), edges=row("map", "b"), terminals=("b",))
    items = ItemSteps(like="map/item", prefix="map", given=tuple(range(width)), window=window)
    like, gather = work("map/item", window="map", scope="map"), work("map/gather")
    play.do("map", fragment=Graph(steps=(like, gather), edges=row(like.id, gather.id), items=items, exit=gather.id))
    return play


def cpu_ms(redis: Redis) -> float:
    """The processor time of Redis so far: on a busy machine, what a call takes by the clock is mostly waiting for a core."""
    used: dict[str, float] = redis.info("cpu")
    return 1000 * (used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


def slowest_ms(redis: Redis, read: Callable[[], object]) -> float:
    """The longest that one call of a read keeps Redis busy: for each call the best of some reads, less the share that Redis did not run."""
    redis.config_set("slowlog-max-len", 10_000)
    redis.config_set("slowlog-log-slower-than", 0)
    reads: list[list[float]] = []
    for _ in range(READS):
        redis.slowlog_reset()
        before = cpu_ms(redis)
        read()
        spent = cpu_ms(redis) - before
        times = [float(each["duration"]) / 1000 for each in redis.slowlog_get(10_000)]
        reads.append([each * min(1.0, spent / sum(times)) for each in times])
    redis.config_set("slowlog-log-slower-than", 10_000)
    slowest: list[float] = [min(times) for times in zip(*reads, strict=False)]
    return max(slowest)


@pytest.mark.slow("it is about many at once")
def test_reads_of_a_large_run_keep_nobody_waiting(ledger: Ledger) -> None:
    play = large(ledger)

    def poll() -> None:
        assert ledger.reader.read("run", ["map", "b"]).answering("map").step_id == "map/gather"  # type: ignore[union-attr]  # it is there

    def everything() -> None:
        assert len(ledger.reader.read("run").steps) == WIDTH + 5

    def graph() -> None:
        assert len(ledger.reader.snapshot("run").steps) == WIDTH + 5

    def names() -> None:
        assert len(ledger.reader.step_ids("run", 1000)) == 1000

    for read in (poll, everything, graph, names, lambda: ledger.reader.answering("run", ["map"])):
        assert slowest_ms(ledger.redis, read) <= BOUND_MS
    assert ledger.steps.signal("run", "nobody", 1)[0] == "unknown"
    assert slowest_ms(ledger.redis, lambda: ledger.steps.signal("run", "nobody", 1)) <= BOUND_MS
    assert ledger.steps.signal("run", "ask", "yes")[0] == "taken"
    ledger.runs.cancel("run")
    assert slowest_ms(ledger.redis, lambda: fork_store.read(ledger, "run")) <= BOUND_MS
    assert play.status == "cancelled"


@pytest.mark.slow("it is about many at once")
@pytest.mark.parametrize("window", [2, WIDTH // 4], ids=["items wait", "items are sent"])
def test_the_end_of_a_large_run_keeps_nobody_waiting(ledger: Ledger, window: int) -> None:
    width = WIDTH // 4
    plays = [large(ledger, f"run{n}", width=width, window=window) for n in range(READS)]
    runs = iter(plays)
    plays[0].sweep()  # Redis reads the script

    assert slowest_ms(ledger.redis, lambda: ledger.runs.cancel(next(runs).run_id)) <= BOUND_MS

    for play in plays:
        assert {step.state for step in ledger.reader.read(play.run_id).steps.values()} == {"done", "skipped"}
        assert {cell.state for cell in ledger.reader.snapshot(play.run_id).steps.values()} == {"done", "skipped"}
        assert ledger.reader.records(play.run_id, ["map/0"])["map/0"].state == "skipped"
        assert play.refusal("map/0") == "closed"
        assert play.refusal(f"map/{width - 1}") == "closed"
    assert slowest_ms(ledger.redis, ledger.leases.sweep_all) <= 2 * BOUND_MS  # it does more than one thing
    while any(ledger.redis.exists(f"{play.shard}:clearing") for play in plays):
        ledger.leases.sweep_all()
    assert list(ledger.redis.scan_iter("*:backlog:*")) == []
    for play in plays:
        for name in ("ready", "due", "leases"):
            assert ledger.redis.zcard(f"{play.shard}:{name}") == 0


def test_a_large_map_whose_item_ends_the_run_keeps_nobody_waiting(ledger: Ledger) -> None:
    plays = [large(ledger, f"run{n}", width=3_000) for n in range(READS)]
    begun = iter([(play, play.begin("map/0")) for play in plays])

    def fail() -> None:
        play, item = next(begun)
        play.commit(item, outcome=failed("broke", "map/0"))

    assert slowest_ms(ledger.redis, fail) <= BOUND_MS
    for play in plays:
        assert play.status == "failed"
        assert play.words("map/0", "map/1", "map/gather", "b") == "failed skipped failed skipped"


def test_a_run_is_kept_until_it_is_cleared_and_its_calls_that_wait_for_limits_are_told_to_leave(ledger: Ledger) -> None:
    play = large(ledger, width=1_000, window=1_000)
    asking = [f"map/{n}" for n in range(0, 1_000, 10)]
    for step_id in asking:
        play.commit(play.begin(step_id), outcome=Outcome(status="wait", retry_in_s=0.0))
    ledger.runs.cancel("run")
    key = run_key(None, "run")
    assert [ledger.redis.pttl(key + part) for part in ("", ":state", ":window")] == [-1, -1, -1]
    for step_id in asking[: len(asking) // 2]:
        ledger.redis.zadd(f"{play.shard}:due", {f"permit|run|{step_id}": 1.0}, xx=True)

    left = set(play.sweep().left)
    while ledger.redis.exists(f"{play.shard}:clearing"):
        left.update(play.sweep().left)

    assert left == {f"run|{step_id}" for step_id in asking}
    assert all(ledger.redis.pttl(key + part) > 0 for part in ("", ":state"))


@pytest.mark.parametrize("kept", [(), (":state", ":window")])
def test_a_run_that_was_deleted_before_it_was_cleared_stops_no_sweep(ledger: Ledger, kept: tuple[str, ...]) -> None:
    play = large(ledger, width=1_000, window=1_000)
    ledger.runs.cancel("run")
    key = run_key(None, "run")
    for name in ledger.redis.scan_iter(f"{key}*"):
        if name.removeprefix(key) not in kept:
            ledger.redis.delete(name)

    while ledger.redis.exists(f"{play.shard}:clearing"):
        assert play.sweep().fault == ""

    assert list(ledger.redis.scan_iter(f"{key}:*", count=10_000)) == [] or kept
    ledger.redis.flushdb()


def test_a_lease_of_a_run_that_is_over_is_not_renewed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are forgotten in pieces, and who does one is told at once."""
    play = large(ledger, width=3_000, window=3_000)
    begun = [play.begin(f"map/{n}") for n in range(0, 3_000, 50)]

    ledger.runs.cancel("run")

    assert ledger.redis.hlen(f"{play.shard}:clearing") == 1
    assert ledger.redis.zcard(f"{play.shard}:leases") > 0
    assert set(ledger.leases.renew(each.lease for each in begun)) == {each.lease for each in begun}


def test_a_commit_told_again_does_not_look_through_others_leases(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    leases = f"{play.shard}:leases"
    ledger.redis.zadd(leases, {f"other{n}|1|w~1|a": 2.0**42 for n in range(WIDTH)})
    play.lose_lease(begun)

    assert slowest_ms(ledger.redis, lambda: play.commit(begun)) <= BOUND_MS
    assert play.commit(begun).result == "stale"
    ledger.redis.delete(leases)


def test_the_sessions_of_a_tenant_are_listed_without_those_of_others(ledger: Ledger) -> None:
    for shard in range(64):
        ledger.redis.zadd(
            f"{shard_key(ledger.redis, shard)}:sessions", {f"other/{n}": float(n) for n in range(WIDTH // 64)}
        )
        ledger.redis.zadd(
            f"{shard_key(ledger.redis, shard)}:sessions:other", {f"other/{n}": float(n) for n in range(WIDTH // 64)}
        )
    sent = int(ledger.redis.info("stats")["total_net_output_bytes"])

    assert Sessions(ledger, "ann").list() == []

    assert int(ledger.redis.info("stats")["total_net_output_bytes"]) - sent < 20_000, "none of the others' names came"


def between(monkeypatch: pytest.MonkeyPatch, module: ModuleType, change: Callable[[], object]) -> None:
    """Let a run go on when its states have been read, and what else there is has not. It is read in pieces, as a large one."""
    monkeypatch.setattr(run_reader, "SMALL_RUN_STEPS", 0)
    changes = [change]

    def scanned(*words: object, **more: object) -> dict[str, str]:
        found = pieces.scan(*words, **more)  # type: ignore[arg-type]  # as they came
        if changes:
            changes.pop()()
        return found

    monkeypatch.setattr(module, "scan", scanned)


def test_a_run_that_ends_while_it_is_read_is_told_as_it_ended(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    play.do("a", 1)
    between(monkeypatch, run_reader, lambda: play.do("b", 2))

    read = ledger.reader.read("run")

    assert (read.status, read.steps["b"].state, read.steps["b"].output) == ("succeeded", "done", 2)


def test_a_page_of_a_run_that_ends_while_it_is_read_shows_how_it_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    between(monkeypatch, run_reader, lambda: play.do("a", 1))

    shown = ledger.reader.snapshot("run")

    assert (shown.run.status, shown.steps["a"].state) == ("succeeded", "done")


def test_an_output_is_told_only_with_the_end_of_its_step(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), terminals=("b",))
    between(monkeypatch, run_reader, lambda: (play.do("a", 1), play.do("b", 2)))

    read = ledger.reader.read("run")

    assert (read.steps["a"].state, read.steps["a"].output) == ("sent", None), "it was so shortly before"
    assert (read.steps["b"].state, read.steps["b"].output) == ("done", 2), "a terminal is told as it is"


def test_an_expansion_while_a_run_is_read_leads_to_no_step_that_is_not_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("c"))
    between(monkeypatch, run_reader, lambda: play.do("a", 1, fragment=Graph(steps=(work("x"),), exit="x")))

    read = ledger.reader.read("run")

    answer = read.answering("a")
    assert answer is not None
    assert (answer.step_id, answer.state, answer.output) == ("a", "sent", None)


def test_a_run_that_is_open_again_on_another_master_is_read_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that takes over may not have its end yet."""
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"), terminals=("b",))
    play.do("a")
    key = run_key(None, "run")
    before = {part: cast("bytes", ledger.redis.dump(key + part)) for part in ("", ":state", ":log", ":out", ":info")}
    play.do("b", 1)

    def take_over() -> None:
        ledger.redis.delete(f"{key}:closed")
        for part, text in before.items():
            ledger.redis.restore(key + part, 0, text, replace=True)
        for part in ledger.redis.scan_iter(f"{key}*"):
            ledger.redis.persist(part)

    monkeypatch.setattr(run_reader, "SMALL_RUN_STEPS", 0)
    texts, changes = ledger.reader._texts, [take_over]
    monkeypatch.setattr(ledger.reader, "_texts", lambda *words: (texts(*words), changes and changes.pop()())[0])

    assert ledger.reader.read("run").status == "running"
    assert not changes
    ledger.redis.flushdb()


def test_a_small_run_is_read_in_one_call_as_a_large_one_is_in_many(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("c"), edges=row("a", "b", "c"), terminals=("c",))
    play.do("a", 1, fragment=Graph(steps=(work("x"), work("y")), edges=row("x", "y"), exit="y"))
    play.do("x", "large")
    reads: list[RunRecord] = []

    for ends in (("y", "b", "c"), ()):  # it is open, then ended
        ledger.redis.config_resetstat()
        reads.append(ledger.reader.read("run"))
        calls = ledger.redis.info("commandstats")
        assert (calls["cmdstat_evalsha"]["calls"], "cmdstat_hscan" in calls) == (1, False)
        with monkeypatch.context() as patch:
            patch.setattr(run_reader, "SMALL_RUN_BYTES", 0)
            assert replace(ledger.reader.read("run"), now_ms=reads[-1].now_ms) == reads[-1]
        for step_id in ends:
            play.do(step_id, step_id)

    assert [read.status for read in reads] == ["running", "succeeded"]
    assert [reads[-1].answering(name).output for name in ("a", "c")] == ["y", "c"]  # type: ignore[union-attr]  # both are there


@pytest.mark.parametrize("large", ["specs", "signals"])
def test_a_run_of_few_steps_with_large_values_is_read_in_pieces(ledger: Ledger, large: str) -> None:
    play, text, steps = Play(ledger), "x" * 200_000, [f"s{number}" for number in range(80)]
    if large == "specs":
        play.plan(*(work(step, params={"args": [text]}) for step in steps))
    else:
        play.plan(*map(wait, steps))
        for step in steps:
            ledger.steps.signal("run", step, text)

    assert min(slowest_ms(ledger.redis, lambda: ledger.reader.read("run")) for _ in range(3)) < BOUND_MS


@pytest.mark.parametrize(
    ("part", "output"), [(":out", "x"), (":state", "x"), (":out", "x" * 50_000), (":blobs", "x" * 50_000)]
)
def test_a_finished_run_of_which_a_part_was_evicted_is_gone(ledger: Ledger, part: str, output: str) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    play.do("a", output)
    assert ledger.reader.read("run").steps["a"].output == output

    ledger.redis.delete(f"{run_key(ledger.redis, 'run')}{part}")

    for read in (ledger.reader.read, lambda run_id: fork_store.read(ledger, run_id)):
        with pytest.raises(UnknownRunError, match="evicted"):
            read("run")
    ledger.redis.flushdb()
