"""What agents cost around their model calls, beside LiteLLM alone: many calls at once, the first text of a stream, a round of tools."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from urllib.request import urlopen

from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import Run
from cantata.engine.limits.limiter import Ask, Limiter
from cantata.flows.definitions import Agent, Budget, Budgets, Definitions, Limits, Rates, Tool
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.operation.embedded.stack_plan import worker_command
from cantata.values import JsonValue
from tests.bench.bare import AT_ONCE, MODEL, TOOL, most_bytes
from tests.bench.measure import HERE, PATIENCE_S, PROCESSES
from tests.bench.peers.timing import memory_mb

CALL_S = 1.0
PIECE_S = 0.05  # before each piece of a stream but the first, which has no text
ROUNDS = 10
FORKS = 4
REPEATS = {"at once": 5, "stream": 30, "loop": 15, "take": 1000}
SLOW, STREAMED, LOOP = "slow", "stream", "loop"

CALLS = [
    {"match": f"^{LOOP}", "after_tools": done, "tool_calls": [{"name": "count", "arguments": {"n": done}}]}
    for done in range(ROUNDS)
]
RULES = [
    {"match": f"^{SLOW}", "delay_s": CALL_S, "reply": "done"},
    {"match": f"^{STREAMED}", "chunk_delay_s": PIECE_S, "reply": "one two three four five"},
    *CALLS,
    {"reply": "done"},
]


@dataclass(frozen=True)
class Figure:
    """One thing measured, of Cantata and of LiteLLM alone, in turns on the same machine."""

    name: str
    unit: str
    target: float
    ours: Sequence[float]
    bare: Sequence[float] = ()
    held: Literal["", "more", "times"] = ""
    """What is held against the target: ours alone, what it takes more than LiteLLM alone, or how many times as much."""

    @property
    def told(self) -> float:
        """What is held against the target."""
        ours = statistics.median(self.ours)
        if self.held == "times":
            return ours / statistics.median(self.bare)
        return ours - statistics.median(self.bare) if self.held == "more" else ours


class Bare:
    """LiteLLM alone, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, what: str, text: str = "") -> float:
        """One measurement of `tests.bench.bare`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {text}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def measure_agents() -> list[Figure]:
    """Measure all, on a stack of its own."""
    with model_server(RULES) as url:
        with model_stack(url, _definitions()) as client, bare_process() as bare:
            figures = [*_at_once(client, bare), _first_text(client, bare, url), _round(client, bare), _take(client)]
        with model_stack(url, _definitions(), agents=FORKS) as client:
            return [*figures, _shared_memory(client)]


def _at_once(client: EmbeddedClient, bare: Bare) -> Iterator[Figure]:
    """Two ways to many calls: one run that maps, and as many turns."""
    texts = [f"{SLOW} {n}" for n in range(AT_ONCE)]
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "each"},
        {"node_id": "each", "kind": "agent", "name": "plain", "input_map": {"text": "_item"}},
    ]
    request = {"nodes": nodes, "entry_node": "all", "initial_input": {"items": texts}}
    one_run, turns, alone = [], [], []
    for _ in range(REPEATS["at once"]):
        one_run.append(took_s(lambda: [client.submit_chain(request)]))
        turns.append(took_s(lambda: [client.submit_turn(text, agent="plain") for text in texts]))
        alone.append(bare.measure("at_once", SLOW))
    (worker,) = (process for process in client.stack.processes() if process.name == "agents")
    yield Figure(f"{AT_ONCE} calls of {CALL_S:g} s at once, in one run", "s", 1.08, one_run, alone, "times")
    yield Figure(f"{AT_ONCE} turns of {CALL_S:g} s at once", "s", 1.08, turns, alone, "times")
    yield Figure(
        "memory of the process that made them",
        "MB",
        30,
        [most_bytes(worker.pid) / 1e6],
        [bare.measure("memory") / 1e6],
        "more",
    )


def _first_text(client: EmbeddedClient, bare: Bare, url: str) -> Figure:
    """From when the server sent it to when another process had it."""
    bare.measure("first_text", STREAMED)  # loads a tokenizer, as the first of our streams did
    ours, alone = [], []
    for number in range(REPEATS["stream"]):
        events = client.submit_turn(f"{STREAMED} ours {number}", agent="streaming").events(timeout_s=PATIENCE_S)
        ours.append(next(time.time() for event in events if event.type == "delta"))
        for _ in events:
            pass  # its end is not in the way of the next
        alone.append(bare.measure("first_text", f"{STREAMED} bare {number}"))
    sent = {entry["text"]: entry["at"] + PIECE_S for entry in _journal(url)}
    late = {
        name: [(at - sent[f"{STREAMED} {name} {n}"]) * 1000 for n, at in enumerate(seen)]
        for name, seen in (("ours", ours), ("bare", alone))
    }
    return Figure("first text of a stream, from the server to its reader", "ms", 1, late["ours"], late["bare"], "more")


def _round(client: EmbeddedClient, bare: Bare) -> Figure:
    """A call of the model and its tool, without the rest of the run: what a loop takes more than an answer without tools."""

    def turn_s(text: str) -> float:
        return took_s(lambda: [client.submit_turn(text, agent="looping")])

    turn_s(LOOP)
    ours, alone = [], []
    for _ in range(REPEATS["loop"]):
        ours.append((turn_s(LOOP) - turn_s("no tools")) / ROUNDS * 1000)
        alone.append((bare.measure("loop", LOOP) - bare.measure("loop", "no tools")) / ROUNDS * 1000)
    return Figure(f"a round of a model and its tool, of {ROUNDS}", "ms", 4, ours, alone, "more")


def _take(client: EmbeddedClient) -> Figure:
    """A permit for a call under a model's and a tenant's rates and all budgets; its settlement is not counted."""
    much = Rates(rpm=10**6, tpm=10**9, concurrency=10**6)
    budget = Budget(usd=10**6, tokens=10**9)
    limits = Limits(
        models={MODEL: much}, tenants={"bench": much}, budgets=Budgets(run=budget, tenant=budget, day=budget)
    )
    limiter, took_ms = Limiter(Ledger(connect(client.redis_url))), []
    for number in range(REPEATS["take"]):
        ask = Ask(holder=f"bench|1|bench|{number}", model=MODEL, tokens=1000, usd=0.001, tenant="bench")
        since = time.perf_counter()
        limiter.take(ask, limits)
        took_ms.append((time.perf_counter() - since) * 1000)
        limiter.settle(ask.holder, tokens=500, usd=0.0005)
    return Figure("a permit under all shared limits", "ms", 0.3, took_ms)


def _shared_memory(client: EmbeddedClient) -> Figure:
    """Each of several agents processes counts its part of what they share."""
    for _ in range(ROUNDS):
        took_s(lambda: [client.submit_turn("call", agent="plain") for _ in range(FORKS)])
    processes = [process.pid for process in client.stack.processes() if process.name.startswith("agents")]
    name = f"memory (PSS) of each of {FORKS} agents processes, after {ROUNDS} calls"
    return Figure(name, "MB", 90, [memory_mb([pid]) for pid in processes])


def took_s(submit: Callable[[], Sequence[Run]]) -> float:
    """The seconds until runs are over, from before they were submitted."""
    since = time.perf_counter()
    runs = submit()
    for run in runs:
        run.wait(PATIENCE_S)
    took_s = time.perf_counter() - since
    if failed := [run.record() for run in runs if run.status() != "succeeded"]:
        raise SystemExit(f"run {failed[0].run_id} did not succeed: {failed[0].error}")
    return took_s


def _definitions() -> Definitions:
    return Definitions(
        folder=str(HERE),
        tools={
            "count": Tool(function="bench_tools:count", parameters=cast("dict[str, JsonValue]", TOOL["parameters"]))
        },
        agents={
            "plain": Agent(model=MODEL, stream=False),
            "streaming": Agent(model=MODEL),
            "looping": Agent(model=MODEL, stream=False, tools=["count"]),
        },
    )


@contextmanager
def model_server(rules: Sequence[object]) -> Iterator[str]:
    """The address of scripted models, in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.yaml")
        script.write_text(json.dumps(rules))
        with _process("cantata.testing", str(script)) as server:
            assert server.stdout is not None
            yield server.stdout.readline().strip()


@contextmanager
def model_stack(url: str, definitions: Definitions, *, agents: int = 1) -> Iterator[EmbeddedClient]:
    """A stack with one agents worker, or several, which has asked its model on behalf of each agent."""
    os.environ |= {"OPENAI_API_BASE": url, "OPENAI_API_KEY": "sk-scripted", "CANTATA_TASK_EVENTS": "0"}

    def command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
        return worker_command(name, queues, AT_ONCE if "agents" in queues else concurrency)

    with (
        tempfile.TemporaryDirectory() as home,
        Client.embedded(home, config=definitions, agents=agents, tools=PROCESSES, command=command) as client,
    ):
        took_s(lambda: [client.submit_turn("warm", agent=agent) for agent in definitions.agents])
        yield client


@contextmanager
def bare_process() -> Iterator[Bare]:
    """LiteLLM alone, warm."""
    with _process("tests.bench.bare") as process:
        bare = Bare(process)
        bare.measure("loop", "warm")
        yield bare


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _journal(url: str) -> list[dict[str, Any]]:
    with urlopen(f"{url.removesuffix('/v1')}/journal") as answer:
        return cast("list[dict[str, Any]]", json.load(answer))
