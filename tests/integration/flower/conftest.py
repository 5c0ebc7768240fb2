"""A real stack with its own Flower, Flowers in processes of their own, and chains that wait until a test lets them go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.flows.definitions import Definitions, Tool
from cantata.operation.embedded import Stack, stack_plan

PATIENCE_S = 40.0
HERE = Path(__file__).parent


class Deployment:
    """The stack, a client of it, and the Flower that is part of it."""

    def __init__(self, folder: Path, stack: Stack, client: Client) -> None:
        self.folder = folder
        self.stack = stack
        self.client = client

    @property
    def url(self) -> str:
        """Where the stack's Flower is."""
        url = self.stack.status().flower_url
        assert url
        return url

    def http(self, **more: Any) -> httpx.Client:
        """A client of the stack's Flower."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **more)

    def chain(self, *nodes: dict[str, Any]) -> ChainRun:
        """Submit a chain of calls, one after the other."""
        following = [node["node_id"] for node in nodes[1:]]
        linked = [
            {"kind": "tool", **node, "next_node": after} for node, after in zip(nodes, [*following, None], strict=True)
        ]
        return self.client.submit_chain({"nodes": linked, "entry_node": nodes[0]["node_id"]})

    def added(self) -> ChainRun:
        """A run that is over."""
        run = self.chain({"node_id": "sum", "name": "add", "input": {"a": 1, "b": 2}})
        assert run.result(PATIENCE_S).final_output == 3
        return run

    @contextmanager
    def blocked_run(self) -> Iterator[tuple[ChainRun, Callable[[], None]]]:
        """A run that is under way until it is let go, which it is in the end."""
        gate = self.folder / f"gate-{time.monotonic_ns()}"
        run = self.chain(
            {"node_id": "wait", "name": "hold", "input": {"until": str(gate)}},
            {"node_id": "end", "name": "add", "input": {"a": 1, "b": 1}},
        )
        try:
            yield run, gate.touch
        finally:
            gate.touch()
            run.result(PATIENCE_S)

    @contextmanager
    def served(self, command: str, *options: str, **environment: str) -> Iterator[str]:
        """Another `submit flower` or `submit gateway`, at any free port; its address."""
        words = [sys.executable, "-m", "cantata.surfaces.cli", command, "--port", "0", "--json", *options]
        log = self.folder / f"{command}.log"
        own = {**os.environ, "REDIS_URL": self.stack.url, **environment}
        with (
            log.open("w") as errors,
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, env=own, cwd=self.folder
            ) as process,
        ):
            assert process.stdout
            line = process.stdout.readline()
            try:
                assert line, log.read_text()
                yield json.loads(line)["url"]
            finally:
                process.terminate()
                process.wait(timeout=60)
            said = log.read_text()
            assert "Traceback" not in said, said
            assert process.returncode == 0, said


@contextmanager
def opened(folder: Path) -> Iterator[Deployment]:
    """A stack with a coordinator, a worker for tools, and Flower."""
    definitions = Definitions(
        folder=str(HERE), tools={name: Tool(function=f"flower_tools:{name}") for name in ("add", "hold")}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(stack_plan.DEFAULT_PORTS, "flower", 0)  # any that is free: other tests start stacks too
        for name in [name for name in os.environ if name.startswith("FLOWER_")]:
            patch.delenv(name)
        with (
            Stack.start(folder / "home", agents=0, tools=2, flower=True) as stack,
            Client(stack.url, config=definitions) as client,
        ):
            yield Deployment(folder, stack, client)


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A stack for all tests that leave it as they found it."""
    with opened(tmp_path_factory.mktemp("flower")) as deployment:
        yield deployment
