"""A real stack, gateways in processes of their own, and their clients over real sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from cantata.operation.embedded import Stack
from cantata.testing import ScriptedModels

CONFIG = Path(__file__).with_name("gateway.yaml")
PATIENCE_S = 40.0
ANNA, OTTO = "token-of-anna-0123456789", "token-of-otto-0123456789"
SCOPES = ["chat", "submit", "signal", "read", "admin"]
TENANTS = {token: {"tenant": name, "name": name, "scopes": SCOPES} for token, name in ((ANNA, "anna"), (OTTO, "otto"))}

Json = dict[str, Any]


class Gateway:
    """A gateway that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def http(self, token: str | None = None, **more: Any) -> httpx.Client:
        """A client over HTTP."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S, **more)

    @asynccontextmanager
    async def chat(self, session: str, token: str | None = None, **more: Any) -> AsyncIterator[Chat]:
        """A client over a WebSocket."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with connect(
            f"{self.url.replace('http', 'ws')}/ws/{session}", additional_headers=headers, **more
        ) as socket:
            yield Chat(socket)

    def memory_mb(self) -> float:
        """What its process holds in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Chat:
    """One end of a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, text: str, **more: Any) -> None:
        """Send a text."""
        await self.send({"text": text, **more})

    async def send(self, message: Json) -> None:
        """Send a message."""
        await self.socket.send(json.dumps(message))

    async def frame(self) -> Json:
        """The next frame."""
        frame: Json = json.loads(await self.socket.recv())
        return frame

    async def until(self, kind: str, **fields: object) -> list[Json]:
        """The frames up to and with the first of a kind."""
        frames = [await self.frame()]
        while frames[-1]["type"] != kind or any(frames[-1].get(name) != value for name, value in fields.items()):
            frames.append(await self.frame())
        return frames

    async def ask(self, text: str, **more: Any) -> Json:
        """Send a text and wait for how it ended."""
        await self.say(text, **more)
        return (await self.until("result"))[-1]


class Deployment:
    """Where gateways are started: a folder, the stack in it, and the model server that its workers ask."""

    def __init__(self, folder: Path, stack: Stack, models: ScriptedModels) -> None:
        self.folder = folder
        self.stack = stack
        self.models = models

    @contextmanager
    def gateway(self, *options: str, **environment: str) -> Iterator[Gateway]:
        """A gateway at any free port."""
        command = [
            sys.executable,
            "-m",
            "cantata.surfaces.cli",
            "gateway",
            "--port",
            "0",
            "--config",
            str(CONFIG),
            "--json",
            *options,
        ]
        own = {**os.environ, "REDIS_URL": self.stack.url, **environment}
        log = self.folder / "gateway.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=own) as process,
        ):
            assert process.stdout
            line = process.stdout.readline()
            try:
                assert line, log.read_text()
                yield Gateway(process, json.loads(line)["url"])
            finally:
                process.terminate()
                process.wait(timeout=60)
            said = log.read_text()
            assert "Traceback" not in said, said
            assert process.returncode == 0, said


@pytest.fixture(scope="package")
def models() -> Iterator[ScriptedModels]:
    """The model server of the stack's workers."""
    with ScriptedModels() as server:
        yield server


def start(folder: Path, models: ScriptedModels, **options: Any) -> Stack:
    """A stack whose workers ask our models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        return Stack.start(folder, tools=2, **options)


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels) -> Iterator[Deployment]:
    """A stack for all tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("gateway")
    with start(folder, models, agents=2) as stack:
        yield Deployment(folder, stack, models)


@pytest.fixture(scope="package")
def gateway(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway without tokens."""
    with deployment.gateway("--rate", "10000") as gateway:
        yield gateway


@pytest.fixture(scope="package")
def guarded(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of two tenants."""
    file = deployment.folder / "tokens.json"
    file.write_text(json.dumps(TENANTS))
    with deployment.gateway("--tokens-file", str(file)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def echoes(models: ScriptedModels) -> None:
    """Each test begins with models that echo."""
    models.script([])


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client without a token."""
    with gateway.http() as client:
        yield client
