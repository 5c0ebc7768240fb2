"""What agents cost around their model calls, beside LiteLLM alone: many calls at once, the first word of a stream, a round of tools."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from orchestrator.client import Client, EmbeddedClient
from orchestrator.embedded.plan import worker_command
from orchestrator.models.definitions import Agent, Budget, Budgets, Definitions, Limits, Rates, Tool
from orchestrator.state.connection import connect
from orchestrator.state.ledger import Ledger
from orchestrator.state.limits import Ask, Limiter
from tests.bench.bare import resident_bytes
from tests.bench.measure import HERE, PATIENCE_S, PROCESSES

MODEL = "openai/scripted"
AT_ONCE = 200
CALL_S = 1.0
REPEATS = 3
STREAMS = 30
PIECE_S = 0.05
ROUNDS = 10
LOOPS = 15
TAKES = 1000
SLOW, STREAMED, LOOP = "slow", "stream", "loop"

RULES = [
    {"match": f"^{SLOW}", "delay_s": CALL_S, "reply": "done"},
    {"match": f"^{STREAMED}", "chunk_delay_s": PIECE_S, "reply": "one two three four five"},
    *({"match": f"^{LOOP}", "after_tools": done, "tool_calls": [{"name": "noop", "arguments": {"n": done}}]} for done in range(ROUNDS)),
    {"reply": "done"},
]
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}}


@dataclass(frozen=True)
class Figure:
    """One thing measured, of Cantata and of LiteLLM alone."""

    name: str
    unit: str
    ours: Sequence[float]
    bare: Sequence[float]
    target: float
    over_bare: bool = False
    """Whether the target is for what ours takes more."""

    @property
    def told(self) -> float:
        """What is held against the target."""
        ours = statistics.median(self.ours)
        return ours - statistics.median(self.bare) if self.over_bare else ours

    @property
    def is_met(self) -> bool:
        """Whether it is as good as it should be."""
        return self.told <= self.target


def measure_agents() -> list[Figure]:
    """Measure all, on a stack of its own."""
    with _server() as url, _stack(url) as client:
        bare = _bare(url)
        at_once, turns_at_once, resident = _at_once(client)
        sent, seen = _streams(client, url)
        server_delays = [at + PIECE_S for at in sent]
        figures = [
            Figure(f"{AT_ONCE} calls of {CALL_S:g} s at once, a map", "s", at_once, bare["at_once_s"], 1.6),
            Figure(f"{AT_ONCE} turns of {CALL_S:g} s at once", "s", turns_at_once, bare["at_once_s"], 1.6),
            Figure("memory of the process after that", "MB", [resident / 1e6], [bare["resident_bytes"] / 1e6], 300),
            Figure("first text of a stream, from server to reader", "ms", _ms(seen, server_delays), bare["first_text_ms"], 25),
            Figure("a round of tools", "ms", _round_ms(client), bare["round_ms"], 8, over_bare=True),
            Figure("take of all limits", "ms", _take_ms(client), [], 0.5),
        ]
    return figures


@contextmanager
def _server() -> Iterator[str]:
    """The scripted models, in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.yaml")
        script.write_text(json.dumps(RULES))
        command = [sys.executable, "-m", "orchestrator.testing", str(script)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield server.stdout.readline().strip()
            finally:
                server.terminate()


@contextmanager
def _stack(url: str) -> Iterator[EmbeddedClient]:
    os.environ |= {"OPENAI_API_BASE": url, "OPENAI_API_KEY": "sk-scripted", "CANTATA_TASK_EVENTS": "0"}
    noop = Tool(function="bench_tools:noop", description="Does nothing.", parameters=PARAMETERS)
    definitions = Definitions(
        folder=str(HERE),
        tools={"noop": noop},
        agents={
            "plain": Agent(model=MODEL, stream=False),
            "streaming": Agent(model=MODEL),
            "looping": Agent(model=MODEL, stream=False, tools=["noop"]),
        },
    )

    def command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
        return worker_command(name, queues, AT_ONCE if "agents" in queues else concurrency)

    with (
        tempfile.TemporaryDirectory() as home,
        Client.embedded(home, config=definitions, agents=1, tools=PROCESSES, command=command) as client,
    ):
        for agent in definitions.agents:
            client.submit_turn("warm", agent=agent).wait(PATIENCE_S)
        yield client


def _bare(url: str) -> dict[str, Any]:
    tool = {"name": "noop", "description": "Does nothing.", "parameters": PARAMETERS}
    asked = {
        "model": MODEL, "slow": SLOW, "at_once": AT_ONCE, "repeats": REPEATS, "streamed": f"{STREAMED} bare", "streams": STREAMS,
        "rounds_text": LOOP, "rounds": ROUNDS, "loops": LOOPS, "tool": tool,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "tests.bench.bare", json.dumps(asked)], stdout=subprocess.PIPE, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    sent = [at + PIECE_S for at in _arrivals(url, f"{STREAMED} bare")]
    return {**told, "first_text_ms": _ms(told["first_text_at"], sent)}


def _at_once(client: EmbeddedClient) -> tuple[list[float], list[float], int]:
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "each"},
        {"node_id": "each", "kind": "agent", "name": "plain", "input_map": {"text": "_item"}},
    ]
    request = {"nodes": nodes, "entry_node": "all", "initial_input": {"items": [f"{SLOW} {n}" for n in range(AT_ONCE)]}}
    one_run, many = [], []
    for _ in range(REPEATS):
        since = time.perf_counter()
        run = client.submit_chain(request)
        run.wait(PATIENCE_S)
        one_run.append(time.perf_counter() - since)
        if run.status() != "succeeded":
            raise SystemExit(f"run {run.run_id} did not succeed: {run.record().error}")
    for _ in range(REPEATS):
        since = time.perf_counter()
        runs = [client.submit_turn(f"{SLOW} {n}", agent="plain") for n in range(AT_ONCE)]
        for each in runs:
            each.wait(PATIENCE_S)
        many.append(time.perf_counter() - since)
    (worker,) = (process for process in client.stack.processes() if process.name == "agents")
    return one_run, many, resident_bytes(str(worker.pid))


def _streams(client: EmbeddedClient, url: str) -> tuple[list[float], list[float]]:
    """When each request of a stream came to the server, and when its first text was read."""
    seen = []
    for _ in range(STREAMS):
        for event in client.submit_turn(STREAMED, agent="streaming").events(timeout_s=PATIENCE_S):
            if event.type == "delta":
                seen.append(time.time())
                break
        time.sleep(5 * PIECE_S)  # its end is not in the way of the next
    return _arrivals(url, STREAMED), seen


def _round_ms(client: EmbeddedClient) -> list[float]:
    """A round of the model and its tool, without the rest of the run."""
    return [(_turn_s(client, LOOP) - _turn_s(client, "no tools")) / ROUNDS * 1000 for _ in range(LOOPS)]


def _turn_s(client: EmbeddedClient, text: str) -> float:
    since = time.perf_counter()
    run = client.submit_turn(text, agent="looping")
    run.wait(PATIENCE_S)
    took_s = time.perf_counter() - since
    if run.status() != "succeeded":
        raise SystemExit(f"run {run.run_id} did not succeed: {run.record().error}")
    return took_s


def _take_ms(client: EmbeddedClient) -> list[float]:
    """Leave for a call by a model's and a tenant's rates and all budgets; the settling is not counted."""
    much = Rates(rpm=10**6, tpm=10**9, concurrency=10**6)
    budget = Budget(usd=10**6, tokens=10**9)
    limits = Limits(models={MODEL: much}, tenants={"bench": much}, budgets=Budgets(run=budget, tenant=budget, day=budget))
    limiter, took_ms = Limiter(Ledger(connect(client.redis_url))), []
    for number in range(TAKES):
        ask = Ask(holder=f"bench|1|bench|{number}", model=MODEL, tokens=1000, usd=0.001, tenant="bench")
        since = time.perf_counter()
        limiter.take(ask, limits)
        took_ms.append((time.perf_counter() - since) * 1000)
        limiter.settle(ask.holder, tokens=500, usd=0.0005)
    return took_ms


def _arrivals(url: str, text: str) -> list[float]:
    with urlopen(Request(f"{url.removesuffix('/v1')}/journal")) as answer:
        journal = json.load(answer)
    return [entry["at"] for entry in journal if entry["text"] == text]


def _ms(seen: Sequence[float], sent: Sequence[float]) -> list[float]:
    return [(later - earlier) * 1000 for later, earlier in zip(seen, sent, strict=True)]
