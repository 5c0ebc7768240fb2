"""The processor time that a run costs each process, and so how many runs a core carries: with one Redis, and with a cluster."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from cantata.client.client import Client
from cantata.client.runs import Run
from cantata.engine.fleet import registry
from cantata.flows.definitions import Agent, Definitions, PythonWorkflow, Tool
from tests.bench.agents import RULES, model_server
from tests.bench.bare import MODEL
from tests.bench.measure import HERE, PATIENCE_S
from tests.bench.shapes import row
from tests.integration.redis.servers import OPEN, Clustered, Server, running, until

AT_ONCE = 50
REPEATS = 3
GATEWAY_TURNS = 50
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROCESSES = (1, 2, 4)
WORKERS = ("coordinator", "agents", "tools")
START_S = 90.0


@dataclass(frozen=True)
class Cost:
    """What one run of a workload costs."""

    workload: str
    redis: str
    """One server, or how many nodes."""
    processes: int
    """Of tools."""
    runs_per_second: float
    cpu_ms: Mapping[str, float]
    """Process → processor time of one run."""


def measure_capacity() -> list[Cost]:
    """Measure all workloads with 1, 2 and 4 processes for tools, and with 2 on a cluster of three nodes."""
    costs: list[Cost] = []
    with model_server(RULES) as url:
        for processes in PROCESSES:
            costs += _costs("one server", processes, url)
        costs += _costs("3 nodes", 2, url)
    return costs


def _costs(redis: str, processes: int, model_url: str) -> Iterator[Cost]:
    with _fleet(redis == "3 nodes", processes, model_url) as (client, groups, gateway):
        for name, submit in _workloads(client, gateway).items():
            yield _cost(name, redis, processes, submit, groups)
            sys.stderr.write(f"{redis}, {processes} processes: {name}\n")


def _workloads(client: Client, gateway: str) -> Mapping[str, Callable[[], Sequence[Run]]]:
    def many(submit: Callable[[], Run]) -> Callable[[], Sequence[Run]]:
        return lambda: [submit() for _ in range(AT_ONCE)]

    def over_http() -> Sequence[Run]:
        body = json.dumps({"text": "no tools", "agent": "plain"}).encode()
        return [client.run(_post(f"{gateway}/turns", body)) for _ in range(GATEWAY_TURNS)]

    cheap, own = ({"nodes": row(tool, 10), "entry_node": "s0"} for tool in ("noop", "noop_task"))
    return {
        "chain of 10 cheap steps": many(partial(client.submit_chain, cheap)),
        "chain of 10 tasks": many(partial(client.submit_chain, own)),
        "workflow of 10 awaits": many(partial(client.submit_workflow, "row", {"steps": 10})),
        "turn of one agent": many(partial(client.submit_turn, "no tools", agent="plain")),
        "the same over HTTP": over_http,
    }


def _cost(
    name: str, redis: str, processes: int, submit: Callable[[], Sequence[Run]], groups: Mapping[str, Sequence[int]]
) -> Cost:
    _finish(submit())  # workers learn what work costs
    took_s, spent = [], dict.fromkeys(groups, 0.0)
    runs = 0
    for _ in range(REPEATS):
        before, since = {group: _cpu_s(pids) for group, pids in groups.items()}, time.perf_counter()
        submitted = submit()
        _finish(submitted)
        took_s.append((time.perf_counter() - since) / len(submitted))
        runs += len(submitted)
        for group, pids in groups.items():
            spent[group] += _cpu_s(pids) - before[group]
    cpu_ms = {group: seconds * 1000 / runs for group, seconds in spent.items()}
    return Cost(name, redis, processes, 1 / statistics.median(took_s), cpu_ms)


def _finish(runs: Sequence[Run]) -> None:
    for run in runs:
        run.wait(PATIENCE_S)
    if failed := [run.record() for run in runs if run.status() != "succeeded"]:
        raise SystemExit(f"run {failed[0].run_id} did not succeed: {failed[0].error}")


def _post(url: str, body: bytes) -> str:
    with urlopen(Request(url, body, {"content-type": "application/json"})) as answer:
        return str(json.load(answer)["run_id"])


def _cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds of processes and of all that they started."""
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        fields[int(stat.parent.name)] = int(text[1]), (int(text[11]) + int(text[12])) * TICK_S
    family = set(pids)
    while grown := {pid for pid, (parent, _) in fields.items() if parent in family} - family:
        family |= grown
    return sum(seconds for pid, (_, seconds) in fields.items() if pid in family)


@contextmanager
def _fleet(
    is_cluster: bool, processes: int, model_url: str
) -> Iterator[tuple[Client, Mapping[str, Sequence[int]], str]]:
    """A client, the processes by what they are, and the gateway's address."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = Server(folder)
        servers = [broker]
        url = f"redis://{broker.place}/0"
        if is_cluster:
            cluster = Clustered(folder, OPEN)
            servers += cluster.nodes
            url = cluster.url
        stack.enter_context(running(*servers))
        if is_cluster:
            cluster.form()
        environment = {
            **os.environ, "REDIS_URL": url, "CANTATA_BROKER_URL": f"redis://{broker.place}/0", "CANTATA_TASK_EVENTS": "0",
            "OPENAI_API_BASE": model_url, "OPENAI_API_KEY": "sk-scripted",
        }  # fmt: skip
        config = folder / "bench.json"
        config.write_text(json.dumps({"version": 1, "agents": {"plain": {"model": MODEL, "stream": False}}}))
        groups = {"redis": [server.process.pid for server in servers[-3:]]}
        if is_cluster:
            groups["broker"] = [broker.process.pid]
        for name in WORKERS:
            concurrency = {"tools": processes, "agents": 100}.get(name, 2)
            groups[name] = [
                stack.enter_context(_process(environment, "worker", name, "--concurrency", str(concurrency))).pid
            ]
        gateway_process = stack.enter_context(
            _process(environment, "gateway", "--port", "0", "--json", "--config", str(config))
        )
        groups["gateway"] = [gateway_process.pid]
        assert gateway_process.stdout is not None
        gateway = str(json.loads(gateway_process.stdout.readline())["url"])
        client = stack.enter_context(Client(url, broker_url=environment["CANTATA_BROKER_URL"], config=_definitions()))
        until(lambda: {*WORKERS} <= registry.slots(client.redis).keys(), "the workers", START_S)
        yield client, groups, gateway


@contextmanager
def _process(environment: Mapping[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "cantata.surfaces.cli", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _definitions() -> Definitions:
    return Definitions(
        folder=str(HERE),
        tools={"noop": Tool(function="bench_tools:noop"), "noop_task": Tool(function="bench_tools:noop", cheap=False)},
        agents={"plain": Agent(model=MODEL, stream=False)},
        workflows={"row": PythonWorkflow(function="workflow_code:row")},
    )
