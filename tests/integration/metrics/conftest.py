"""A real stack whose processes show their metrics, a gateway beside it, and what Prometheus would read of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cantata.client.client import Client, EmbeddedClient
from cantata.engine.fleet import registry
from cantata.flows.definitions import Agent, Chain, Defaults, Definitions, Limits, Tool
from cantata.flows.wire import ChainNode
from cantata.testing import ScriptedModels

HERE = Path(__file__).parent
MODEL = "openai/gpt-4o-mini"
PATIENCE_S = 40.0
TOKEN, TENANTS_TOKEN = "token-of-the-operator-01", "token-of-anna-0123456789"


def definitions(**limits: Any) -> Definitions:
    """What the runs of these tests may name."""
    return Definitions(
        folder=str(HERE),
        tools={
            **{name: Tool(function=f"metrics_tools:{name}") for name in ("add", "gate")},
            "fail": Tool(function="metrics_tools:fail"),
            "hang": Tool(function="metrics_tools:gate", timeout_s=0.5),
        },
        agents={
            "ann": Agent(model=MODEL, retries=2, instructions=["{input}"]),
            "bea": Agent(model=MODEL, retries=2, stream=False),
        },
        defaults=Defaults(agent="ann"),
        chains={
            "report": Chain(nodes=[ChainNode(node_id="a", kind="tool", name="add", input={"a": 1})], entry_node="a")
        },
        limits=Limits.model_validate(limits),
    )


Sample = tuple[str, frozenset[tuple[str, str]]]


class Scrape(dict[Sample, float]):
    """What was read: the samples of several processes, added up."""

    def of(self, name: str, /, **labels: str) -> float:
        """The sum of the samples of this name that have these labels."""
        return sum(value for (each, has), value in self.items() if each == name and has >= labels.items())

    def since(self, before: Scrape) -> Scrape:
        """What was added."""
        return Scrape({sample: value - before.get(sample, 0.0) for sample, value in self.items()})


def read(url: str, **headers: str) -> Scrape:
    """Scrape one process."""
    answer = httpx.get(f"{url}/metrics", headers=headers, timeout=PATIENCE_S).raise_for_status()
    found = Scrape()
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


class Stage:
    """The stack, its gateway, and the models that its workers ask."""

    def __init__(self, client: EmbeddedClient, gateway: dict[str, str], models: ScriptedModels) -> None:
        self.client = client
        self.gateway_url = gateway["url"]
        self.metrics_url = gateway["metrics_url"]
        self.models = models

    def workers(self) -> Scrape:
        """What all workers count, added up."""
        total = Scrape()
        for worker in registry.workers(self.client.redis):
            for sample, value in read(worker.metrics_url).items():
                total[sample] = total.get(sample, 0.0) + value
        return total

    def fleet(self) -> Scrape:
        """What the gateway shows."""
        return read(self.metrics_url)

    def load(self) -> dict[str, Any]:
        """What autoscalers are told."""
        found: dict[str, Any] = (
            httpx.get(f"{self.metrics_url}/load", timeout=PATIENCE_S).raise_for_status().json()["queues"]
        )
        return found


@contextmanager
def gateway(redis_url: str, folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """A gateway in a process of its own; what it says of itself."""
    command = [
        sys.executable,
        "-m",
        "cantata.surfaces.cli",
        "gateway",
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--json",
        *options,
    ]
    log = folder / "gateway.log"
    own = {"REDIS_URL": redis_url, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parents[2])}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=own) as process,
    ):
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """All of it. When it has ended, no worker leaves a file behind."""
    folder = tmp_path_factory.mktemp("metrics")
    with (
        tempfile.TemporaryDirectory(prefix="cm", dir="/tmp") as temporary,
        pytest.MonkeyPatch.context() as patch,
        ScriptedModels() as models,
    ):
        for name, text in {
            "OPENAI_API_BASE": models.url,
            "OPENAI_API_KEY": "sk-test-secret-0123456789",
            "CANTATA_METRICS_PORT": "0",
            "CANTATA_METRICS_TENANTS": "5",
            "TMPDIR": temporary,
        }.items():
            patch.setenv(name, text)
        with (
            Client.embedded(folder / "home", config=definitions(), agents=1, tools=2) as client,
            gateway(client.redis_url, folder) as told,
        ):
            yield Stage(client, told, models)
        assert list(Path(temporary).glob("cantata-metrics-*")) == []
