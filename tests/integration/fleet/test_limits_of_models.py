"""Limits that all workers share hold between two of them: how often a model is asked, for whom, and what a run may spend."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import Run, TurnRun
from cantata.errors import ConfigError
from cantata.flows.definitions import Agent, Budget, Budgets, Limits, Quota, Rates, Team
from cantata.flows.events import RateLimited, RunEvent
from cantata.flows.wire import RunResult
from cantata.testing import ScriptedModels
from tests.integration.fleet.agent_stage import PATIENCE_S, AgentStage, Json, agent
from tests.waiting import at_best, until

PRICED = "openai/gpt-4o-mini"
HOLD_S = 0.3
PAUSE_S = 3600
BUSY_S = 4.0  # what a busy machine may take more; whose turn came and who was not told would lose 5 s
RELEASE_S = 20.0  # a lease of 5 s and a second look at the slot, on a machine that stalls

_numbers = count()


@pytest.fixture
def model() -> str:
    """A model that no other test asks, so that what is counted for it is this test's alone."""
    return f"openai/limited-{os.getpid()}-{next(_numbers)}"


def asks(model: str, **fields: Any) -> Agent:
    """An agent that asks this model once."""
    return agent(model=model, params={"max_tokens": 100}, **fields)


def submit(client: Client, number: int, **more: Any) -> list[TurnRun]:
    """So many turns at once."""
    return [client.submit_turn(f"turn {i}", agent="it", **more) for i in range(number)]


def results(runs: Sequence[TurnRun]) -> list[RunResult]:
    """How they ended, which is well."""
    ended = [run.result(PATIENCE_S) for run in runs]
    assert [result.error for result in ended if result.status != "succeeded"] == []
    return ended


def peak(requests: Sequence[Json]) -> int:
    """How many requests were under way at once, at most."""
    moments = sorted([(request["at"], 1) for request in requests] + [(request["until"], -1) for request in requests])
    under_way = most = 0
    for _, step in moments:
        under_way += step
        most = max(most, under_way)
    return most


def waits(run: Run) -> list[RateLimited]:
    """When a run's calls had to wait, so far."""
    return [event for event in so_far(run) if isinstance(event, RateLimited)]


def reason_of(wait: RateLimited) -> str:
    """Why a call had to wait, without those before it."""
    return wait.reason.partition(";")[0]


def so_far(run: Run) -> list[RunEvent]:
    """A run's events so far."""
    return list(run.log(timeout_s=0.01))


def warm(stage: AgentStage, model: str) -> None:
    """Have both workers ask a model, so that they have loaded what they need."""
    unlimited = stage.client(asks(model))
    seen: set[str | None] = set()
    while len(seen) < 2:
        runs = submit(unlimited, 4)
        results(runs)
        seen |= workers(runs)


def workers(runs: Sequence[Run]) -> set[str | None]:
    """The processes that began a turn of these runs."""
    return {event.worker for run in runs for event in so_far(run) if event.type == "started" and event.step == "it"}


def waiting_probes(client: Client, probes: list[TurnRun]) -> list[TurnRun]:
    """One more turn is submitted, whose call is made or has to wait: those of all probes whose call waits."""
    probes.append(probe := client.submit_turn("probe", agent="it", timeout_s=2 * PAUSE_S))
    until(lambda: waits(probe) or probe.status() == "succeeded", "a probe", PATIENCE_S)
    return [each for each in probes if waits(each)]


# Rates


@pytest.mark.slow("calls wait for a limit")
def test_a_limit_of_concurrency_holds_across_workers_and_wastes_little(stage: AgentStage, model: str) -> None:
    stage.script({"delay_s": HOLD_S})
    warm(stage, model)
    client, most_s = (
        stage.client(asks(model), limits=Limits(models={model: Rates(concurrency=2)})),
        20 / 2 * HOLD_S + BUSY_S,
    )

    def took_s() -> float:
        """How long 20 calls took; for ever, if one worker made all, or if they came to look instead of being told."""
        before = len(stage.requests())
        runs = submit(client, 20)
        results(runs)
        requests = stage.requests()[before:]
        assert (len(requests), peak(requests)) == (20, 2)
        is_fair = len(workers(runs)) == 2 and sum(len(waits(run)) for run in runs) <= 2 * 20
        return (
            max(request["until"] for request in requests) - min(request["at"] for request in requests)
            if is_fair
            else math.inf
        )

    assert at_best(took_s, most_s) <= most_s


def test_runs_that_are_cancelled_while_they_wait_keep_nobody_else_waiting(stage: AgentStage, model: str) -> None:
    client = stage.client(asks(model), limits=Limits(models={model: Rates(concurrency=1)}))

    def took_s() -> float:
        stage.script({"delay_s": 30})
        runs = submit(client, 10)
        until(lambda: sum(bool(waits(run)) for run in runs) >= 8, "most of them waiting", PATIENCE_S)
        stage.script({"delay_s": HOLD_S})
        for run in runs:
            run.cancel()
        since = time.monotonic()
        results(submit(client, 1))
        return time.monotonic() - since

    assert at_best(took_s, HOLD_S + BUSY_S) <= HOLD_S + BUSY_S


def test_what_is_past_the_calls_of_a_minute_waits_without_a_slot(
    stage: AgentStage, client: EmbeddedClient, model: str
) -> None:
    went = stage.client(asks(model), limits=Limits(models={model: Rates(rpm=3, concurrency=3)}))

    results(submit(went, 3))
    late = went.submit_turn("late", agent="it")
    wait = until(lambda: waits(late), "the wait")[0]

    assert (wait.step, wait.reason) == ("it", "the rpm of the model is used up")
    assert 20 < float(wait.seconds) <= 62
    assert late.record().steps["it"].state == "waiting"
    assert client.redis.scard(f"cantata:{{limits}}:model:{model}:slots") == 0

    assert late.cancel() == "cancelled"
    assert len(stage.prompts()) == 3


def test_a_provider_that_asks_for_a_pause_is_left_alone_by_all_workers(
    stage: AgentStage, client: EmbeddedClient, model: str
) -> None:
    stage.script({"status": 429, "headers": {"Retry-After": str(PAUSE_S)}, "times": 1})
    asking, probes = stage.client(asks(model, retries=0), limits=Limits(max_pause_s=PAUSE_S)), list[TurnRun]()

    first = asking.submit_turn("first", agent="it", timeout_s=2 * PAUSE_S)
    until(lambda: waits(first), "the pause", PATIENCE_S)
    until(lambda: len(workers(waiting_probes(asking, probes))) == 2, "both workers to know of the pause", PATIENCE_S)
    others = submit(asking, 8, timeout_s=2 * PAUSE_S)
    until(lambda: all(map(waits, others)), "their waits")
    client.skip(PAUSE_S - 60)  # others are looked for meanwhile, in vain
    over_at = time.time()
    client.skip(60)
    results([first, *probes, *others])

    assert min(request["at"] for request in stage.requests()[1:] if request["text"] != "probe") >= over_at
    words = "the model's provider asked for a pause: model .* the provider asks to slow down \\(429\\)"
    assert all(re.match(words, reason_of(waits(run)[0])) for run in others)
    assert len(workers(others)) == 2


@pytest.mark.slow("calls wait for a window of a limit")
def test_the_calls_of_a_tenant_are_limited_and_those_of_others_are_not(stage: AgentStage, model: str) -> None:
    stage.script({"delay_s": 2.0})
    client = stage.client(asks(model), limits=Limits(tenants={"small": Rates(concurrency=1)}))

    small = submit(client, 3, labels={"tenant": "small"})
    others = [
        client.submit_turn("other", agent="it", labels=labels) for labels in ({"tenant": "large"}, {}) for _ in range(3)
    ]
    results([*small, *others])

    theirs = [request for request in stage.requests() if request["text"].startswith("turn")]
    assert peak(theirs) == 1
    assert 1 <= sum(bool(waits(run)) for run in small) <= 2
    assert not any(waits(run) for run in others)


def test_a_run_without_limits_never_waits(stage: AgentStage, client: EmbeddedClient, model: str) -> None:
    stage.script({"delay_s": 60.0})

    runs = submit(stage.client(asks(model)), 20)
    until(lambda: len(stage.requests()) == 20, "all calls at once")
    for run in runs:
        run.cancel()

    assert not any(waits(run) for run in runs)
    assert list(client.redis.scan_iter(f"cantata:{{limits}}:model:{model}:*", count=10_000)) == [], (
        "nothing is counted for it"
    )


def test_a_tenant_past_its_quota_of_runs_is_refused_and_finds_what_it_submitted(stage: AgentStage, model: str) -> None:
    stage.script({"delay_s": 30})
    client = stage.client(asks(model), limits=Limits(quotas={"full": Quota(open_runs=1)}))
    full = {"tenant": "full"}

    first = client.submit_turn("first", agent="it", labels=full, idempotency_key="one")
    with pytest.raises(ConfigError, match="1 of 1 runs are open; wait until some end"):
        client.submit_turn("second", agent="it", labels=full)

    assert client.submit_turn("first", agent="it", labels=full, idempotency_key="one").run_id == first.run_id
    client.submit_turn("other", agent="it").cancel()
    first.cancel()
    client.submit_turn("second", agent="it", labels=full).cancel()


# Budgets

FIFTY = " ".join(["word"] * 50)
TEXTS = ["first {input}", "second {input}", "third {input}", "fourth {input}"]


@pytest.mark.parametrize(("unit", "limit"), [("tokens", 250), ("usd", 0.00012)])
def test_a_run_that_has_spent_its_budget_ends_exhausted_and_says_what_it_spent(
    stage: AgentStage, unit: str, limit: float
) -> None:
    stage.script({"reply": FIFTY})
    budget = Budget.model_validate({unit: limit})

    result = stage.ask(asks(PRICED, instructions=TEXTS), limits=Limits(budgets=Budgets(run=budget)))

    used = result.usage
    spent = f"${used.cost_usd:.6f}" if unit == "usd" else f"{used.input_tokens + used.output_tokens} tokens"
    asked = [
        each for each in stage.requests() if each["body"]["model"] in PRICED
    ]  # what was just cancelled elsewhere may still come
    assert (result.status, result.output, len(asked)) == ("exhausted", None, 2)
    assert result.error is not None
    assert (result.error.code, result.error.step) == ("budget", "it/@3")
    assert result.error.message.startswith(f"{spent} of the ")
    assert f" of limits.budgets.run.{unit} are spent, and this call may take " in result.error.message


def test_a_budget_that_is_spent_within_a_broadcast_ends_the_run(stage: AgentStage) -> None:
    stage.script({"match": "^a ", "reply": FIFTY, "delay_s": 0.5}, {"reply": FIFTY, "delay_s": 0.1})
    agents = {name: asks(PRICED, instructions=[f"{name} {text}" for text in TEXTS]) for name in ("a", "b", "c")}
    teams = {"all": Team(mode="broadcast", agents=list(agents))}

    client = stage.client(
        asks(PRICED), agents=agents, teams=teams, limits=Limits(budgets=Budgets(run=Budget(tokens=600)))
    )
    result = client.submit_turn("go", team="all").result(PATIENCE_S)

    until(
        lambda: not any(lease.startswith(result.run_id) for lease in client.ledger.leases.names()),
        "the end of what was under way",
    )
    calls = len(stage.prompts())
    assert 3 <= calls < 12
    assert (result.status, result.output) == ("exhausted", None)
    assert result.error is not None
    spent = int(result.error.message.split(" tokens of the 600 tokens of limits.budgets.run.tokens are spent")[0])
    assert result.usage.input_tokens + result.usage.output_tokens <= spent <= 600, (
        "a call that ended together with the run is spent, too"
    )
    time.sleep(0.5)
    assert len(stage.prompts()) == calls, "nothing is asked for afterwards"


@pytest.mark.parametrize("on_error", ["skip", "three"])
def test_a_spent_budget_is_no_error_to_go_on_from(stage: AgentStage, on_error: str) -> None:
    stage.script({"reply": FIFTY})
    client = stage.client(asks(PRICED), limits=Limits(budgets=Budgets(run=Budget(tokens=200))))
    nodes = [
        {"node_id": "one", "kind": "agent", "name": "it", "input": {"text": "one"}, "next_node": "two"},
        {
            "node_id": "two",
            "kind": "agent",
            "name": "it",
            "input_map": {"text": "one"},
            "on_error": on_error,
            "next_node": "four",
        },
        {"node_id": "three", "kind": "agent", "name": "it", "input": {"text": "three"}},
        {"node_id": "four", "kind": "tool", "name": "add", "input": {"a": 1}, "next_node": "three"},
    ]

    response = client.submit_chain({"nodes": nodes, "entry_node": "one"}).result(PATIENCE_S)

    assert (response.status, response.success, response.failed) == ("exhausted", False, ["two"])
    assert (response.outputs, len(stage.prompts())) == ({"one": FIFTY, "two": None}, 1)


# Death


@pytest.mark.thorough("a stack of its own; that leases of permits run out is held by state/test_permits.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_a_killed_worker_gives_back_its_slot(victim: EmbeddedClient, models: ScriptedModels, model: str) -> None:
    with AgentStage(victim.redis_url, models) as stage:
        stage.script({"match": "held", "delay_s": 30, "times": 1})
        client = stage.client(asks(model), limits=Limits(models={model: Rates(concurrency=1)}))
        held = client.submit_turn("held", agent="it")

        def asked() -> list[Json]:
            """The requests of this test: one of a test before may come late."""
            return [request for request in stage.requests() if f"openai/{request['model']}" == model]

        until(asked, "the call", PATIENCE_S)
        other = client.submit_turn("other", agent="it")
        until(lambda: waits(other), "the wait")
        (worker,) = workers([held])

        os.kill(int(str(worker).rpartition("#")[2]), signal.SIGKILL)
        killed_at = time.time()

        results([held, other])
        assert sorted(str(request["text"]) for request in asked()) == ["held", "held", "other"]
        assert all(request["at"] - killed_at < RELEASE_S for request in asked())
        assert peak(asked()[1:]) == 1
