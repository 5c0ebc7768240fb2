"""What workflows, conductors and a builder's groups cost around their model calls, beside LiteLLM alone; parked runs, and forks."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from cantata import ChainBuilder
from cantata.client.client import Client, EmbeddedClient
from cantata.client.runs import Run
from cantata.config import loading
from cantata.flows.definitions import Definitions, Tool
from cantata.values import JsonValue
from cantata_frontends.chainbuilder import plan, run_request
from cantata_frontends.chainbuilder.builder_arguments import read_base, read_parts
from tests.bench.agents import Bare, bare_process, model_server, model_stack, took_s
from tests.bench.bare import MODEL
from tests.bench.measure import HERE, PATIENCE_S
from tests.bench.shapes import row
from tests.bench.turns import Latency, Rate

TEXT = "hello"
MEMBERS = 9
"""The chains of the group that run side by side; one more depends on them all."""
FORKED_STEPS = 1000
LOOK_S = 0.01

RULES = [
    {"match": "^look", "reply": {"good": True}},
    {"match": "^route", "reply": {"next_agent": "clerk"}},
    {"match": "^topic", "reply": {"topic": "pens"}},
    {"match": "^answer", "reply": {"answer": "three"}},
    {"reply": "done"},
]

WORKFLOW = f"""
agents:
  - {{id: one, model: {MODEL}, streaming: false}}
  - {{id: two, model: {MODEL}, streaming: false}}
  - {{id: three, model: {MODEL}, streaming: false}}
workflows:
  flow:
    - id: look
      agent: one
      input: "look ${{user_input}}"
      output: {{to: {{condition: {{if: "${{look.good}} == true", then: work, else: user}}}}}}
    - {{id: work, agent: two, input: "work on ${{look}}"}}
    - {{id: tell, agent: three, input: "tell ${{work}}", output: {{to: user}}}}
"""

FOLDER = {
    "config.yml": f"""
firstContact: chief
llms: [{{name: main, type: openai, modelName: {MODEL.partition("/")[2]}, modelMaxTokens: 8192, apiKey: "${{OPENAI_API_KEY}}"}}]
agents:
  - name: chief
    type: conductor
    llm: main
    prompt: {{type: conductor_prompt, location: chief, longtermMemoryClass: Sale}}
    topics: [clerk]
  - name: clerk
    type: multistep
    llm: main
    prompt: {{type: multistep_prompt, location: clerk, promptArgumentClass: Offer}}
    topics: [chief]
""",
    "chief/system_template.jinja2": "You choose who goes on.",
    "chief/user_template.jinja2": "route",
    "chief/prompt.py": """
from dataclasses import dataclass
from diskurs import LongtermMemory

@dataclass
class Sale(LongtermMemory):
    user_query: str = ""
    answer: str = ""

def can_finalize(sale):
    return bool(sale.answer)
""",
    "clerk/agent_description.txt": "Sells.",
    "clerk/system_template.jinja2": "You sell.",
    "clerk/user_template.jinja2": "{% if not topic %}topic of {{ user_query }}{% else %}answer about {{ topic }}{% endif %}",
    "clerk/prompt.py": """
from dataclasses import dataclass
from diskurs import InputField, OutputField, PromptArgument

@dataclass
class Offer(PromptArgument):
    user_query: InputField[str] = ""
    topic: OutputField[str] = ""
    answer: OutputField[str] = ""

def is_final(offer):
    return bool(offer.answer)
""",
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    at_once: int = 50
    repeats: int = 5
    alone: int = 100
    parked: int = 500
    forks: int = 20


QUICK = Sizes(at_once=20, repeats=2, alone=20, parked=500, forks=5)


@dataclass(frozen=True)
class Flow:
    """A way to answer a turn, and its model calls: so many at once, then so many."""

    name: str
    calls: Sequence[int]
    submit: Callable[[], Run]
    alone: Callable[[], object] | None = None
    """How one is done and waited for, if that is not to submit it."""


@dataclass(frozen=True)
class Parked:
    """Runs that wait for a person."""

    runs: int
    run_bytes: float
    """By what Redis says it uses more, run by run."""
    signals_a_second: float
    """From the first signal until all are over."""


@dataclass(frozen=True)
class Forked:
    """Forks of one run, from its last step."""

    steps: int
    made_ms: Sequence[float]
    """Until the fork was there."""
    over_ms: Sequence[float]
    """Until it was over."""


@dataclass(frozen=True)
class Workflows:
    """All that was measured."""

    rates: Sequence[Rate]
    latencies: Sequence[Latency]
    parked: Parked
    forked: Forked


def measure_workflows(*, quick: bool) -> Workflows:
    """Measure all, on a stack of its own."""
    sizes = QUICK if quick else Sizes()
    definitions = Definitions(folder=str(HERE), tools={"noop": Tool(function="bench_tools:noop")})
    with (
        tempfile.TemporaryDirectory() as folder,
        model_server(RULES) as url,
        model_stack(url, definitions) as client,
        bare_process() as bare,
    ):
        flows = [_workflow(client, Path(folder)), _conductor(client, Path(folder)), _group(client)]
        rates = [_rate(flow, bare, sizes) for flow in flows]
        latencies = [_latency(flow, bare, sizes) for flow in flows]
        return Workflows(rates, latencies, _parked(client, sizes.parked), _forked(client, sizes.forks))


def _workflow(client: Client, folder: Path) -> Flow:
    file = folder / "flow.yaml"
    file.write_text(WORKFLOW)
    own = client.with_definitions(loading.load(file))
    return Flow("a workflow of 3 agents with a condition", (1, 1, 1), lambda: own.submit_workflow("flow", TEXT))


def _conductor(client: Client, folder: Path) -> Flow:
    for name, text in FOLDER.items():
        path = folder / "desk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = client.with_definitions(loading.load(folder / "desk" / "config.yml"))
    return Flow("a conductor with one agent", (1, 1, 1), lambda: own.submit_turn(TEXT))


def _group(client: Client) -> Flow:
    """Many at once are what a builder submits; one alone is done by a builder, with what that keeps in Redis."""
    os.environ["REDIS_URL"] = client.redis_url
    members = [f"m{number}" for number in range(MEMBERS)]
    told = f"Sum up {{input}}: {' '.join(f'{{{name}}}' for name in members)}"
    builder, made = ChainBuilder(MODEL), plan.BuilderPlan(base=read_base(MODEL, "{instruction}", "normal", 60.0))
    for name, text, mode, needs in (
        *((name, "Look at {input}", "parallel", []) for name in members),
        ("all", told, "serial", members),
    ):
        builder.create_chain(name, [text], mode, dependencies=needs)  # type: ignore[arg-type]  # the words of its modes
        made = plan.create(made, name, read_parts([text], "normal"), mode=mode, group="default", dependencies=needs)  # type: ignore[arg-type]
    request = run_request.request_of(made, [*members, "all"], TEXT, {}, timeout_s=None)
    own = client.with_definitions(run_request.definitions_of(made, [*members, "all"], str(HERE)))
    name = f"a builder's group of {MEMBERS + 1} chains"
    return Flow(name, (MEMBERS, 1), lambda: own.submit_chain(request), lambda: builder.execute_group("default", TEXT))


def _rate(flow: Flow, bare: Bare, sizes: Sizes) -> Rate:
    """Each side in turns; the first round of all is not counted."""
    rate = Rate(flow.name, sizes.at_once)
    made = flow.submit().wait(PATIENCE_S).usage.model_calls
    assert made == sum(flow.calls), f"{flow.name} made {made} model calls"
    for number in range(sizes.repeats + 1):
        ours = took_s(lambda: [flow.submit() for _ in range(sizes.at_once)])
        alone = bare.measure("turns", f"{sizes.at_once} {_calls(flow)}")
        if number:
            rate.ours_s.append(ours)
            rate.bare_s.append(alone)
    sys.stderr.write(
        f"{flow.name}: {rate.a_second(rate.ours_s):.0f} turns/s, LiteLLM alone {rate.a_second(rate.bare_s):.0f}\n"
    )
    return rate


def _latency(flow: Flow, bare: Bare, sizes: Sizes) -> Latency:
    latency = Latency(flow.name)
    for _ in range(sizes.alone):
        since = time.perf_counter()
        if flow.alone:
            flow.alone()
        else:
            flow.submit().wait(PATIENCE_S)
        latency.ours_ms.append((time.perf_counter() - since) * 1000)
        latency.bare_ms.append(bare.measure("turns", f"1 {_calls(flow)}") * 1000)
    return latency


def _calls(flow: Flow) -> str:
    return ",".join(map(str, flow.calls))


def _parked(client: Client, number: int) -> Parked:
    """Runs that wait behind one step, before another; some were parked before, so that what all have in common is not counted."""
    nodes: list[JsonValue] = [
        {"node_id": "draft", "kind": "tool", "name": "noop", "next_node": "approve"},
        {"node_id": "approve", "kind": "wait", "next_node": "publish"},
        {"node_id": "publish", "kind": "tool", "name": "noop"},
    ]
    request = {"nodes": nodes, "entry_node": "draft"}

    def park(count: int) -> list[Run]:
        runs: list[Run] = [client.submit_chain(request) for _ in range(count)]
        for run in runs:
            while not _is_parked(run):
                time.sleep(LOOK_S)
        return runs

    first = park(50)
    before = _used(client.redis)
    runs = park(number)
    run_bytes = (_used(client.redis) - before) / number
    since = time.perf_counter()
    for run in (*first, *runs):
        run.signal("approve", True)
    for run in (*first, *runs):
        run.wait(PATIENCE_S)
    return Parked(number, run_bytes, len((*first, *runs)) / (time.perf_counter() - since))


def _is_parked(run: Run) -> bool:
    step = run.steps(["approve"]).get("approve")
    return step is not None and step.state == "waiting_signal"


def _used(redis: Redis) -> int:
    return int(redis.info("memory")["used_memory"])


def _forked(client: EmbeddedClient, number: int) -> Forked:
    """A long run of cheap steps, of which only the last is done anew; the first fork is not counted."""
    nodes = row("noop", FORKED_STEPS)
    source = client.submit_chain({"nodes": nodes, "entry_node": nodes[0]["node_id"], "timeout": PATIENCE_S})
    assert source.wait(PATIENCE_S).status == "succeeded"
    made_ms, over_ms = [], []
    for _ in range(number + 1):
        since = time.perf_counter()
        fork = client.fork(source.run_id, str(nodes[-1]["node_id"]))
        made_ms.append((time.perf_counter() - since) * 1000)
        status = fork.wait(PATIENCE_S).status
        over_ms.append((time.perf_counter() - since) * 1000)
        assert status == "succeeded"
    sys.stderr.write(f"a fork of {FORKED_STEPS} steps: {statistics.median(made_ms[1:]):.1f} ms\n")
    return Forked(FORKED_STEPS, made_ms[1:], over_ms[1:])
