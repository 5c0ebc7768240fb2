"""A plain outcome is recorded by a short script. It leaves what the long one would, and leaves to it what is not plain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from cantata.flows.graph import Edge, Outcome
from cantata.ledger import step_store
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, AttemptRecord, Begun
from cantata.ledger.redis.keys import run_key
from cantata.values import JsonValue, Usage
from tests.integration.state.play import Play, fan_in, row, wait, work
from tests.integration.state.test_ledger_expansion import mapped

AHEAD = Ahead("tools", "\nquick\n")
PARTS = ("", ":state", ":out", ":info", ":given", ":names", ":window", ":joins")
TENANT = {"tenant": "acme"}


def in_a_row(play: Play) -> None:
    """Steps that their worker begins one after the other, with usage, code and an input."""
    play.plan(
        work("a"),
        work("b", work="quick", reads={"x": "a"}),
        work("c", work="quick", has_given=True),
        edges=row("a", "b", "c"),
    )
    begun: Begun | None = play.begin("a")
    while begun is not None:
        outcome = Outcome(
            output={"from": begun.step_id, "inputs": dict(begun.inputs)},
            usage=Usage(tool_calls=1, input_tokens=2, cost_usd=0.1),
        )
        output = f'{{"from":"{begun.step_id}"}}'
        info: dict[str, JsonValue] = {"code": ["tools@1"] if begun.step_id != "b" else ["tools@1", "more@2"]}
        begun = play.ledger.steps.commit(begun, outcome, output=output, info=info, ahead=AHEAD).begun


def sent_to_others(play: Play) -> None:
    """A fan, whose steps another worker is to execute, and its join."""
    play.plan(
        work("a"),
        work("b"),
        work("c"),
        work("d"),
        edges=(*fan_in(("a",), "b"), *fan_in(("a",), "c"), *fan_in(("b", "c"), "d")),
    )
    assert [step.step_id for step in play.do("a").sends] == ["b", "c"]
    assert not play.do("c").sends
    assert [step.step_id for step in play.do("b").sends] == ["d"]


def next_of_the_message(play: Play) -> None:
    """Steps of one message, the second begun by the commit of the first."""
    play.plan(work("a"), work("b"), work("c"), edges=fan_in(("a", "b"), "c"))
    committed = play.commit(play.begin("a"), ahead=Ahead("tools", "\n", next_step="b"))
    assert committed.begun is not None
    assert (committed.begun.step_id, committed.begun.waited_s is not None) == ("b", True)
    play.commit(committed.begun)


def a_decision(play: Play) -> None:
    """Of several steps that become ready the worker begins the one that decides."""
    play.plan(work("a"), work("b"), work("c", decides=True), edges=(*fan_in(("a",), "b"), *fan_in(("a",), "c")))
    committed = play.do("a", ahead=AHEAD)
    assert committed.begun is not None
    assert committed.begun.step_id == "c"


def items(play: Play) -> None:
    """A map with a backlog, whose window is refilled, and then what is behind it."""
    play.plan(work("m"), work("end"), edges=row("m", "end"))
    play.do("m", fragment=mapped("m", tuple(range(5))))
    for number in (1, 0, 3, 2, 4):
        play.do(f"m/{number}", number)
    play.do("m/gather", ahead=AHEAD)


def together(play: Play) -> None:
    """Pure items of a map that one call begins and one records; further ones are sent by it."""
    play.plan(work("m"), work("end"), edges=row("m", "end"))
    play.do("m", fragment=mapped("m", tuple(range(9)), window=4, pure=True))
    for names in (("m/0", "m/1", "m/2"), ("m/3", "m/4", "m/5", "m/6"), ("m/7", "m/8")):
        begun = play.ledger.steps.begin_together("run", names, "worker")
        assert not isinstance(begun, str)
        outcomes = [
            (each, AttemptRecord(Outcome(output=each.step_id), f'"{each.step_id}"', {"by": "worker"})) for each in begun
        ]
        *before, (last, record) = outcomes
        committed = play.ledger.steps.commit(
            last, record.outcome, output=record.output, info=record.info, before=before, ahead=AHEAD
        )
        assert committed.results_before == ("ok",) * len(before)


def not_plain(play: Play) -> None:
    """What else may follow from a step that is done, each from one of its own. A step that waits comes last: then no outcome is plain."""
    targets = (
        work("late", deadline_s=9),
        work("quorum", quorum=1),
        work("alone"),
        work("never"),
        work("weak"),
        wait("asked"),
    )
    fields: dict[str, Any] = {"alone": {"alone": True}, "never": {"label": "failed"}, "weak": {"wakes": False}}
    edges = (Edge(source=f"to-{each.id}", target=each.id, **fields.get(each.id, {})) for each in targets)
    play.plan(
        *targets,
        *(work(f"to-{each.id}") for each in targets),
        work("other"),
        work("another"),
        edges=(*edges, *row("other", "quorum"), *row("another", "alone")),
    )
    for each in targets:
        play.do(f"to-{each.id}")
    play.do("weak", "x" * 40_000)


SCENARIOS = (in_a_row, sent_to_others, next_of_the_message, a_decision, items, together, not_plain)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_both_scripts_leave_the_same(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Play], None]
) -> None:
    by_either = left_by(ledger, scenario)

    monkeypatch.setattr(step_store, "_is_plain", lambda *_: False)

    assert left_by(ledger, scenario) == by_either


def test_a_step_of_a_row_takes_few_commands(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = commands_of_a_step(ledger)
    monkeypatch.setattr(step_store, "_is_plain", lambda *_: False)
    assert (plain, commands_of_a_step(ledger)) == (15, 17)


def test_a_pure_item_takes_few_commands(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = commands_of_an_item(ledger)
    monkeypatch.setattr(step_store, "_is_plain", lambda *_: False)
    assert plain < 2
    assert commands_of_an_item(ledger) > 8


def test_a_window_of_any_size_is_refilled(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("m"))
    play.do("m", fragment=mapped("m", tuple(range(9000))))
    ledger.redis.hset(f"{run_key(None, 'run')}:window", "m", "9000 2")

    assert len(play.do("m/0").sends) == 8998


def test_an_outcome_of_a_step_that_the_run_does_not_have_changes_nothing(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("m"))
    play.do("m", fragment=mapped("m", (1, 2)))
    begun = play.begin("m/0")
    ledger.redis.delete(*cast("list[str]", ledger.redis.keys("*")))
    again = Play(ledger)
    again.plan(work("a"), work("b"))

    assert [again.commit(each).result for each in (begun, replace(begun, spec=work("plain")))] == ["gone", "gone"]


def left_by(ledger: Ledger, scenario: Callable[[Play], None]) -> list[str]:
    """What a scenario leaves in Redis, without times and the numbers of calls."""
    ledger.redis.flushall()
    scenario(Play(ledger, labels=TENANT))
    key, shard = run_key(None, "run"), Play(ledger, labels=TENANT).shard
    log = [
        (fields["t"], fields["s"], fields["a"], fields["w"], fields["d"])
        for _, fields in cast(Any, ledger.redis.xrange(f"{key}:log"))
    ]
    hashes = [ledger.redis.hgetall(f"{key}{part}") for part in PARTS]
    entries = [sorted(ledger.redis.zrange(f"{shard}:{name}", 0, -1)) for name in ("leases", "ready", "due", "asking")]
    hashes[0].pop("accepted_by")
    left = [
        *log,
        *(item for each in hashes for item in sorted(each.items())),
        *entries,
        ledger.redis.hgetall(f"{shard}:bytes"),
    ]
    return [re.sub(r"\d{13}|~\d+", "…", str(each)) for each in left]


def commands_of_a_step(ledger: Ledger) -> float:
    """How many commands the script calls for a step of a long row."""
    ledger.redis.flushall()
    play, names = Play(ledger), [f"s{number}" for number in range(22)]
    play.plan(
        *(work(name, work="quick", reads={"x": f"={before}"}) for before, name in zip(names, names, strict=True)),
        edges=row(*names),
    )
    begun = play.begin("s0")
    ledger.redis.config_resetstat()
    for _ in range(20):
        committed = play.commit(begun, ahead=AHEAD)
        assert committed.begun is not None
        begun = committed.begun
    return commands_since_reset(ledger) / 20


def commands_of_an_item(ledger: Ledger) -> float:
    """How many commands the scripts call for a pure item of a map, recorded with nineteen others."""
    ledger.redis.flushall()
    play = Play(ledger)
    play.plan(work("m"))
    play.do("m", fragment=mapped("m", tuple(range(40)), window=40, pure=True))
    begun = play.ledger.steps.begin_together("run", [f"m/{number}" for number in range(20)], "worker")
    assert not isinstance(begun, str)
    ledger.redis.config_resetstat()
    *before, last = [(each, AttemptRecord(Outcome(), "null", {})) for each in begun]
    play.ledger.steps.commit(last[0], Outcome(), output="null", info={}, before=before)
    return commands_since_reset(ledger) / 20


def commands_since_reset(ledger: Ledger) -> int:
    """How many commands scripts have called."""
    stats: dict[str, Any] = ledger.redis.info("commandstats")
    return sum(
        entry["calls"] for name, entry in stats.items() if not name.startswith(("cmdstat_eval", "cmdstat_config"))
    )
