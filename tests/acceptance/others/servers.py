"""Servers that others wrote, in processes of their own, on loopback: MCP servers of npm and PyPI, llama.cpp's, LiteLLM's proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from cantata.flows.definitions import McpServer
from tests.acceptance.neighbours.environments import environment, kept, missing, run
from tests.integration.redis.servers import free_port
from tests.waiting import until

HERE = Path(__file__).parent
LLAMA = HERE / "llama_server.py"
START_S = 600.0  # LiteLLM's proxy imports for 32 s of processor time, on a busy machine for minutes


def npm_server(name: str, *words: str) -> McpServer:
    """An official MCP server of npm, by its command."""

    def install(folder: Path) -> None:
        npm = shutil.which("npm") or missing("npm", "install Node.js")
        folder.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(HERE / file, folder)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))

    folder = kept("npm", (HERE / "package-lock.json").read_text(), install)
    return McpServer(
        command=[str(folder / "node_modules" / ".bin" / f"mcp-server-{name}"), *words],
        connect_timeout_s=60,
        timeout_s=60,
    )


def time_server() -> McpServer:
    """The official MCP server of times, by its command."""
    command = environment("mcp-time.lock", HERE) / "bin" / "mcp-server-time"
    return McpServer(command=[str(command), "--local-timezone", "UTC"], connect_timeout_s=60, timeout_s=60)


@contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """The address of llama.cpp's own HTTP server with a small model."""
    file = folder / "llama.url"
    with _process(
        [sys.executable, str(LLAMA), str(file)], folder / "llama.log", {"OMP_WAIT_POLICY": "PASSIVE"}
    ):  # else threads spin
        yield f"{until(lambda: file.exists() and file.read_text(), 'the address of llama.cpp', START_S)}/v1"


@contextmanager
def litellm_proxy(folder: Path, models: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """The address of LiteLLM's proxy with these models."""
    program, config, port = (
        environment("litellm-proxy.lock", HERE) / "bin" / "litellm",
        folder / "proxy.yaml",
        free_port(),
    )
    config.write_text(
        yaml.safe_dump({"model_list": list(models), "litellm_settings": {"telemetry": False, "num_retries": 0}})
    )
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_MASTER_KEY": "sk-proxy"}
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with _process(command, folder / "proxy.log", variables) as process:

        def is_up() -> bool:
            assert process.poll() is None, (folder / "proxy.log").read_text()
            return _answers(f"http://127.0.0.1:{port}/health/liveliness")

        until(is_up, "LiteLLM's proxy", START_S)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _process(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **variables}) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
