"""What turns cost around their model calls: teams in each mode, and sessions; beside the same calls by LiteLLM alone and plain Celery."""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import chain, group
from redis import Redis

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import TurnRun
from cantata.flows.definitions import Agent, Definitions, History, Router, SessionSettings, Synthesizer, Team, TeamRule
from tests.bench.agents import Bare, bare_process, model_server, model_stack, took_s
from tests.bench.bare import MODEL
from tests.bench.measure import HERE, PATIENCE_S, database, kept_bytes, plain_worker

ROUTES = "route: "
SAID = 200  # entries of the session that is long
TEXT = "Where is my order? It was to arrive yesterday, and I have heard nothing of it since Monday."  # of usual length, 91 characters
SESSION_TURNS = 4
LOOK_S = 0.002
NAMES = ["one", "two", "three"]

RULES = [{"match": f"^{ROUTES}", "reply": {"chosen_agent": NAMES[0]}}, {"reply": "done"}]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    at_once: int = 100
    repeats: int = 5
    alone: int = 100
    sessions: int = 500


QUICK = Sizes(at_once=50, repeats=2, alone=30, sessions=50)


@dataclass(frozen=True)
class Mode:
    """A way to answer a turn, and its model calls: so many at once, then so many."""

    name: str
    calls: Sequence[int]
    team: str | None = None
    agent: str | None = None
    is_streamed: bool = False


MODES = (
    Mode("an agent", (1,), agent=NAMES[0]),
    Mode("an agent, streamed", (1,), agent="streaming", is_streamed=True),
    Mode("a router by rules", (1,), team="rules"),
    Mode("a router by a model", (1, 1), team="router"),
    Mode("round robin", (1,), team="round"),
    Mode("a pipeline of 3", (1, 1, 1), team="row"),
    Mode("a broadcast of 3, and a synthesizer", (3, 1), team="all"),
)


@dataclass
class Rate:
    """The seconds that turns took that were sent at once."""

    name: str
    turns: int
    ours_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    celery_s: list[float] = field(default_factory=list)
    """Empty where plain Celery was not measured."""

    def a_second(self, samples_s: Sequence[float]) -> float:
        """Turns a second."""
        return self.turns / statistics.median(samples_s)


@dataclass
class Latency:
    """The milliseconds that turns took that were sent one after the other."""

    name: str
    ours_ms: list[float] = field(default_factory=list)
    bare_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Kept:
    """What many sessions take in Redis, and how fast they came."""

    sessions: int
    turns: int
    a_second: float
    entry_bytes: float
    """Of a conversation, by entry."""
    session_bytes: float
    """Of a conversation with all its entries, and its line in the list of sessions."""
    turn_bytes: float
    """Of a run that is over, until its retention is."""


@dataclass(frozen=True)
class Turns:
    """All that was measured."""

    rates: Sequence[Rate]
    latencies: Sequence[Latency]
    kept: Kept


def measure_turns(*, quick: bool) -> Turns:
    """Measure all, on a stack of its own."""
    sizes = QUICK if quick else Sizes()
    with (
        model_server(RULES) as url,
        model_stack(url, _definitions()) as client,
        bare_process() as bare,
        plain_worker(database(client.redis_url, 1)) as app,
    ):
        rates = [_rate(client, bare, app, mode, sizes) for mode in MODES]
        return Turns(rates, _latencies(client, bare, sizes), _kept(client, sizes))


def _definitions() -> Definitions:
    agents = {name: Agent(model=MODEL, stream=False, description=name) for name in (*NAMES, "streaming", "deaf")}
    agents["streaming"] = agents["streaming"].model_copy(update={"stream": True})
    agents["deaf"] = agents["deaf"].model_copy(update={"history": History(enabled=False)})
    return Definitions(
        folder=str(HERE),
        agents=agents,
        sessions=SessionSettings(max_entries=SAID),  # so that a long one stays as long as it is
        teams={
            "rules": Team(
                mode="router",
                agents=NAMES,
                rules=[TeamRule(match="^never$", agent="two"), TeamRule(match="", agent="one")],
            ),
            "router": Team(
                mode="router",
                agents=NAMES,
                router=Router(models=[MODEL], decision_prompt_template=f"{ROUTES}{{user_input}}"),
            ),
            "round": Team(mode="round_robin", agents=NAMES),
            "row": Team(mode="pipeline", agents=NAMES),
            "all": Team(
                mode="broadcast", agents=NAMES, synthesizer=Synthesizer(model=MODEL, prompt="Merge: {agent_responses}")
            ),
        },
    )


def _rate(client: Client, bare: Bare, app: Any, mode: Mode, sizes: Sizes) -> Rate:
    """Each side in turns; the first round of all is not counted."""
    rate = Rate(mode.name, sizes.at_once)
    calls = f"{sizes.at_once} {','.join(map(str, mode.calls))}{' stream' if mode.is_streamed else ''}"
    for number in range(sizes.repeats + 1):
        ours = took_s(lambda: [_submit(client, mode) for _ in range(sizes.at_once)])
        alone = bare.measure("turns", calls)
        celery = None if mode.is_streamed else _celery_s(app, mode, sizes.at_once)
        if number:
            rate.ours_s.append(ours)
            rate.bare_s.append(alone)
            rate.celery_s += [] if celery is None else [celery]
    sys.stderr.write(
        f"{mode.name}: {rate.a_second(rate.ours_s):.0f} turns/s, LiteLLM alone {rate.a_second(rate.bare_s):.0f}\n"
    )
    return rate


def _submit(client: Client, mode: Mode) -> TurnRun:
    return client.submit_turn("hello", team=mode.team, agent=mode.agent)


def _celery_s(app: Any, mode: Mode, at_once: int) -> float:
    ask = app.tasks["ask"]
    steps = [ask.si("hello") if width == 1 else group(ask.si("hello") for _ in range(width)) for width in mode.calls]
    since = time.perf_counter()
    for result in [chain(*steps).apply_async() for _ in range(at_once)]:
        while (
            not result.ready()
        ):  # `get` waits for ever where it missed the notice, which it did once in some hundred chains
            time.sleep(LOOK_S)
    return time.perf_counter() - since


def _latencies(client: Client, bare: Bare, sizes: Sizes) -> list[Latency]:
    """One turn after the other: alone, then in sessions that are new or long."""
    for _ in range(SAID // 2):
        client.submit_turn("hello", agent="deaf", session="long").wait(PATIENCE_S)
    one = "turns", "1 1"
    return [
        _latency("an agent", sizes, lambda _: client.submit_turn("hello", agent="one"), bare, *one),
        _latency(
            "an agent, streamed",
            sizes,
            lambda _: client.submit_turn("hello", agent="streaming"),
            bare,
            "turns",
            "1 1 stream",
        ),
        _latency(
            "a router by a model", sizes, lambda _: client.submit_turn("hello", team="router"), bare, "turns", "1 1,1"
        ),
        _latency(
            "an agent in a new session",
            sizes,
            lambda n: client.submit_turn("hello", agent="one", session=f"new {n}"),
            bare,
            *one,
        ),
        _latency(
            f"an agent in a session of {SAID} entries that it is not shown",
            sizes,
            lambda _: client.submit_turn("hello", agent="deaf", session="long"),
            bare,
            *one,
        ),
        _latency(
            f"an agent in a session of {SAID} entries that it is shown",
            sizes,
            lambda _: client.submit_turn("hello", agent="one", session="long"),
            bare,
            "told",
            str(SAID),
        ),
    ]


def _latency(name: str, sizes: Sizes, submit: Callable[[int], TurnRun], bare: Bare, what: str, text: str) -> Latency:
    latency = Latency(name)
    for number in range(sizes.alone):
        latency.ours_ms.append(took_s(lambda number=number: [submit(number)]) * 1000)  # type: ignore[misc]  # mypy does not infer defaults
        latency.bare_ms.append(bare.measure(what, text) * 1000)
    return latency


def _kept(client: EmbeddedClient, sizes: Sizes) -> Kept:
    """Sessions whose turns come interleaved, some at once."""
    under_way: deque[TurnRun] = deque()
    since = time.perf_counter()
    for number in range(sizes.sessions * SESSION_TURNS):
        if len(under_way) == sizes.at_once:
            under_way.popleft().wait(PATIENCE_S)
        under_way.append(client.submit_turn(TEXT, agent="one", session=f"kept {number % sizes.sessions}"))
    for run in under_way:
        run.wait(PATIENCE_S)
    took = time.perf_counter() - since
    bytes_of_histories, entries = _histories(client.redis)
    listed = sum(
        int(client.redis.memory_usage(key, samples=0) or 0)
        for key in client.redis.scan_iter("cantata:*:sessions", count=10_000)
    )
    turns = sizes.sessions * SESSION_TURNS
    return Kept(
        sizes.sessions,
        turns,
        turns / took,
        bytes_of_histories / entries,
        bytes_of_histories / sizes.sessions + listed / len(client.sessions.list(sys.maxsize)),
        kept_bytes(client.redis, run.run_id),
    )


def _histories(redis: Redis) -> tuple[int, int]:
    """The bytes of the kept conversations, and their entries."""
    keys = list(redis.scan_iter("cantata:*:session:*kept*:history", count=10_000))
    return sum(int(redis.memory_usage(key, samples=0) or 0) for key in keys), sum(int(redis.llen(key)) for key in keys)
