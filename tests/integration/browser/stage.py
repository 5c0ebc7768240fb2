"""A stack, gateways that serve the pages, and what the tests submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.operation.embedded import Stack
from cantata.testing import ScriptedModels

CONFIG = Path(__file__).with_name("pages.yaml")
PATIENCE_S = 30.0
PATIENCE_MS = PATIENCE_S * 1000
WIDE = {"width": 1200, "height": 800}
EXPECTED = ("Failed to load resource", "net::ERR_")
"""What the console says of an answer that is no success, where a test wants one."""

Json = dict[str, Any]

expect.set_options(timeout=PATIENCE_MS)


class Stage:
    """A stack with its models and one client; gateways are started on demand."""

    def __init__(self, folder: Path, stack: Stack, models: ScriptedModels, client: Client, browser: Browser) -> None:
        self.folder = folder
        self.models = models
        self.client = client
        self.browser = browser
        self._stack = stack
        self._gates = 0

    @contextmanager
    def gateway(self, *options: str, port: int = 0) -> Iterator[str]:
        """A gateway in a process of its own; its address."""
        command = [
            sys.executable,
            "-m",
            "cantata.surfaces.cli",
            "gateway",
            "--port",
            str(port),
            "--config",
            str(CONFIG),
            "--json",
            *options,
        ]
        environment = {**os.environ, "REDIS_URL": self._stack.url}
        log = self.folder / "gateway.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        ):
            assert process.stdout
            try:
                line = process.stdout.readline()
                assert line, log.read_text()
                yield json.loads(line)["url"]
            finally:
                process.terminate()
                process.wait(timeout=20)
            assert "Traceback" not in log.read_text(), log.read_text()

    @contextmanager
    def page(self, *, faults: Sequence[str] = (), **context: Any) -> Iterator[Page]:
        """A page in a browser profile of its own. Whatever it throws or complains of fails the test, but for texts with one of `faults`."""
        said: list[str] = []
        own = self.browser.new_context(**{"viewport": WIDE, **context})
        try:
            page = own.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on(
                "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
            )
            yield page
        finally:
            own.close()
        unexpected = [text for text in said if not any(each in text for each in faults)]
        assert not unexpected, unexpected

    def gate(self) -> Path:
        """A file that is not there yet: a tool that waits for it goes on when it is touched."""
        self._gates += 1
        return self.folder / f"gate-{self._gates}"

    def chain(self, *nodes: Json, **request: Any) -> ChainRun:
        """Submit a chain that begins with its first node."""
        labels = request.pop("labels", None)
        return self.client.submit_chain(
            {"nodes": list(nodes), "entry_node": nodes[0]["node_id"], **request}, labels=labels
        )


def tool(node_id: str, name: str, *, next_node: str | list[str] | None = None, **given: Any) -> Json:
    """A tool node with its input."""
    own: Json = {key: given.pop(key) for key in ("on_error", "retry", "deps", "input_map") if key in given}
    return {"node_id": node_id, "kind": "tool", "name": name, "input": given, "next_node": next_node, **own}


@contextmanager
def stage(folder: Path, browser: Browser) -> Iterator[Stage]:
    """A stage with two slots for agents and tools each."""
    with ScriptedModels() as models, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789")
        with Stack.start(folder, agents=1, tools=2, config=CONFIG) as stack, Client(stack.url, config=CONFIG) as client:
            yield Stage(folder, stack, models, client, browser)
