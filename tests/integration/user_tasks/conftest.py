"""A project with its own broker, results and worker, and a stack of ours beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.flows.definitions import Agent, Chain, Definitions, Tool
from cantata.flows.wire import ChainNode, ChainResponse
from cantata.operation import embedded, fault_points
from cantata.testing import ScriptedModels
from tests.faults.processes import family, is_alive
from tests.waiting import until

HERE = Path(__file__).parent
PATIENCE_S = 40.0
HURRIED_S = 3.0
HEARTBEAT_S = 3.0
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
TASKS = (
    "add", "slow", "held", "pay", "fail", "shy", "deputise", "odd", "quiet", "renamed", "order",
    "unsteady", "perishable", "endless", "too_long", "kept",
)  # fmt: skip


def queue_of(pool: str) -> str:
    """The queue of a worker with that pool."""
    return f"of_{pool}"


def definitions() -> Definitions:
    """What the runs of these tests may name."""
    tools = {name: Tool(task=f"shop.tasks.{name}", timeout_s=30.0) for name in TASKS}
    tools["elsewhere"] = Tool(task="shop.tasks.add", queue="shop:other queue")
    tools["stubborn"] = Tool(task="shop.tasks.fail", retries=1)
    tools["once"] = Tool(task="shop.tasks.slow", timeout_s=1.0, at_most_once=True)
    tools["twice"] = Tool(task="shop.tasks.late", at_most_once=True)
    tools["hurried"] = Tool(task="shop.tasks.held", timeout_s=HURRIED_S)
    tools["beating"] = Tool(task="shop.tasks.beating", timeout_s=600.0, heartbeat_s=HEARTBEAT_S)
    tools["beating_once"] = Tool(task="shop.tasks.beating", timeout_s=600.0, heartbeat_s=HEARTBEAT_S, at_most_once=True)
    for name in ("held", "held_late"):  # for longer than any test waits
        tools[f"long_{name}"] = Tool(task=f"shop.tasks.{name}", timeout_s=600.0)
    tools["long_once"] = Tool(task="shop.tasks.held", timeout_s=600.0, at_most_once=True)
    tools["long_ending"] = Tool(task="shop.tasks.held", timeout_s=600.0, queue="ending")
    tools["long_elsewhere"] = Tool(task="shop.tasks.held", timeout_s=600.0, queue="shop:other queue")
    for pool in POOLS:
        tools[f"add_in_{pool}"] = Tool(task="shop.tasks.add", queue=queue_of(pool), timeout_s=30.0)
        tools[f"held_in_{pool}"] = Tool(task="shop.tasks.held", queue=queue_of(pool), timeout_s=HURRIED_S)
    tools["held_late"] = Tool(task="shop.tasks.held_late", queue="late", timeout_s=30.0)
    tools["hurried_late"] = Tool(task="shop.tasks.held_late", timeout_s=HURRIED_S)
    tools["seldom"] = Tool(task="shop.tasks.seldom", timeout_s=HURRIED_S)
    tools["evasive"] = Tool(task="shop.tasks.evasive", timeout_s=HURRIED_S)
    tools["misspelt"] = Tool(task="shop.tasks.ad")
    tools |= {name: Tool(function=f"order_tools:{name}") for name in ("send_add", "send_add_async")}
    clerk = Agent(model="openai/gpt-4o-mini", retries=0, tools=["add", "order", "fail"])
    row = Chain(entry_node="a", nodes=[ChainNode(node_id="a", kind="tool", name="add", input_map={"a": "input.a"})])
    return Definitions(folder=str(HERE), tools=tools, agents={"clerk": clerk}, chains={"row": row})


class Shop:
    """The project: its application, a worker, and what its tasks did."""

    def __init__(
        self,
        folder: Path,
        broker: str,
        backend: str,
        *,
        pool: str = "prefork",
        queues: str = "celery,payments,shop:other queue",
        python: Path | str = sys.executable,
        **environment: str,
    ) -> None:
        self.pool, self.slots = pool, 1 if pool == "solo" else 2
        self.journal = folder / "journal.jsonl"
        self.journal.touch()
        self.fault = folder / "fault"
        self.environment = {
            "SHOP_BROKER": broker, "SHOP_BACKEND": backend, "SHOP_JOURNAL": str(self.journal), **environment
        }  # fmt: skip
        self.app = Celery("shop", broker=broker, backend=backend or None, set_as_current=False)
        self.worker: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._name = f"{pool}-{queues.partition(',')[0]}@shop"
        self._command = [
            str(python), "-m", "celery", "-A", "shop", "worker",
            "-P", pool, "-c", str(self.slots), "-Q", queues, "-n", self._name, "-l", "ERROR",
        ]  # fmt: skip

    def start_worker(self) -> None:
        """Start its worker, as its team does."""
        self.start_worker_soon()
        until(lambda: self.app.control.ping([self._name], timeout=0.5), "their worker")

    def start_worker_soon(self) -> None:
        """Start its worker, which takes tasks a moment later."""
        environment = {**os.environ, **self.environment}
        self.worker = subprocess.Popen(self._command, cwd=HERE, env=environment, start_new_session=True)

    def start_another(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start another worker, which ends with the project at the latest."""
        command = [*self._command[:6], *options, "-n", name, "-l", "ERROR"]
        worker = subprocess.Popen(command, cwd=HERE, env={**os.environ, **self.environment}, start_new_session=True)
        self._others.append(worker)
        until(lambda: self.app.control.ping([name], timeout=0.5), f"their worker {name}")
        return worker

    def kill_worker(self, worker: subprocess.Popen[bytes] | None = None) -> None:
        """Kill all processes of its worker. A child that it started later has its connection, on which Redis may still send a message."""
        worker = worker or self.worker
        assert worker
        processes = family(worker.pid)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        until(lambda: not any(map(is_alive, processes)), "the end of its children")

    def lines(self, what: str, mark: str) -> list[dict[str, Any]]:
        """What was done under a mark."""
        found = map(json.loads, self.journal.read_text().splitlines())
        return [line for line in found if line["what"] == what and line["name"] == mark]

    def close(self) -> None:
        """End its workers."""
        for other in self._others:
            if other.poll() is None:
                self.kill_worker(other)
        if self.worker and self.worker.poll() is None:
            self.worker.terminate()
            try:
                self.worker.wait(10)
            except subprocess.TimeoutExpired:
                self.kill_worker()
        self.app.close()


@contextmanager
def beside(shop: Shop, home: Path, app: str = "shop.celery:app", *, broker_url: str | None = None) -> Iterator[Client]:
    """A client with a stack of ours beside the project, whose application is named so; with a broker of our own, or with its broker."""
    own = {"CANTATA_BROKER_URL": broker_url} if broker_url else {}
    with ExitStack() as opened:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                **shop.environment,
                **own,
                "CANTATA_APP": app,
                fault_points.VARIABLE: f"@{shop.fault}",
            }.items():
                patch.setenv(name, value)
            patch.chdir(HERE)
            stack = opened.enter_context(embedded.Stack.start(home, tools=1, virtual_time=True))
        client = opened.enter_context(
            Client(stack.url, broker_url=broker_url or shop.environment["SHOP_BROKER"], config=definitions())
        )
        client.stack = stack  # type: ignore[attr-defined]  # for tests that kill its processes
        yield client


@pytest.fixture(scope="package")
def models() -> Iterator[ScriptedModels]:
    """A model server; nothing else can be reached."""
    with ScriptedModels() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", server.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        yield server


def url_of(valkey: Redis, database: int) -> str:
    """The address of a database, as Celery has it."""
    return f"redis+socket://{valkey.connection_pool.connection_kwargs['path']}?virtual_host={database}"


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory, valkey: Redis) -> Iterator[Shop]:
    """The project with Redis as broker and for its results."""
    made = Shop(tmp_path_factory.mktemp("shop"), url_of(valkey, 5), url_of(valkey, 6))
    try:
        made.start_worker()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory, shop: Shop, models: ScriptedModels) -> Iterator[Client]:
    """A client with a stack beside that project, to which a proxy is named, `celery.current_app`."""
    with beside(shop, tmp_path_factory.mktemp("stack"), "shop.celery:current") as client:
        yield client


@pytest.fixture
def fault(shop: Shop) -> Path:
    """A file: what is written to it strikes our workers, once."""
    return shop.fault


def tool(node_id: str, name: str, **fields: Any) -> dict[str, Any]:
    """A tool node; other fields than the node's own are its input."""
    own = {key: fields.pop(key) for key in list(fields) if key in ChainNode.model_fields}
    return {"node_id": node_id, "kind": "tool", "name": name, **({"input": fields} if fields else {}), **own}


def submit(client: Client, *nodes: dict[str, Any], **request: Any) -> ChainRun:
    """Begin a chain."""
    return client.submit_chain({"nodes": list(nodes), "entry_node": str(nodes[0]["node_id"]), **request})


def ask(client: Client, *nodes: dict[str, Any], **request: Any) -> ChainResponse:
    """Run a chain to its end."""
    return submit(client, *nodes, **request).result(PATIENCE_S)
