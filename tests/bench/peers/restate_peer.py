"""Restate: its server on loopback with the defaults of its documentation, and one process that serves the workflows, by Hypercorn.

`python -m tests.bench.peers.restate_peer PORT` is that process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import hypercorn  # type: ignore[import-not-found]
import hypercorn.asyncio  # type: ignore[import-not-found]
import restate  # type: ignore[import-not-found]

from tests.bench.peers.timing import (
    LONG,
    PATIENCE_S,
    free_port,
    hang_once_async,
    in_loop,
    is_wanted,
    memory_mb,
    recovery_ms,
    tell,
    tell_samples,
    wait_until,
)

HOST = "127.0.0.1"
_keys = itertools.count()


async def noop() -> int:
    """Do nothing."""
    return 1


async def row(context: Any, steps: int) -> int:
    """Steps, one after the other."""
    for _ in range(steps):
        await context.run_typed("noop", noop)
    return steps


async def diamond(context: Any, width: int) -> int:
    """A step, many at once, and one that waits for all."""
    await context.run_typed("noop", noop)
    await restate.gather(*(context.run_typed("noop", noop) for _ in range(width)))
    await context.run_typed("noop", noop)
    return width


async def recovering(context: Any, marker: str) -> int:
    """Three steps; the worker of the second is killed."""
    await context.run_typed("noop", noop)
    await context.run_typed("hang", hang_once_async, restate.RunOptions(), marker)
    await context.run_typed("noop", noop)
    return 1


ROW, DIAMOND, RECOVERING = (restate.Workflow(name) for name in ("row", "diamond", "recovering"))
run_row, run_diamond, run_recovering = ROW.main()(row), DIAMOND.main()(diamond), RECOVERING.main()(recovering)


def serve(port: int) -> None:
    """Serve the workflows to the server."""
    config = hypercorn.Config()
    config.bind = [f"{HOST}:{port}"]
    asyncio.run(hypercorn.asyncio.serve(restate.app(services=[ROW, DIAMOND, RECOVERING]), config))


def start_worker(port: int) -> subprocess.Popen[bytes]:
    """Start the process that serves the workflows."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.peers.restate_peer", str(port)], stdout=subprocess.DEVNULL
    )


def start_server(ports: dict[str, int]) -> subprocess.Popen[bytes]:
    """Start the server; nothing but its addresses and its folder differs from its defaults, and it sends no telemetry."""
    binary = next(
        Path(os.environ["PEER_ENVIRONMENT"]).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    )
    settings = {
        "RESTATE_BASE_DIR": os.environ["PEER_HOME"],
        "RESTATE_BIND_ADDRESS": f"{HOST}:{ports['fabric']}",
        "RESTATE_BIND_IP": HOST,
        "RESTATE_ADVERTISED_HOST": HOST,
        "RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{ports['ingress']}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{ports['admin']}",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "warn",
    }
    return subprocess.Popen([str(binary), "--no-logo"], env={**os.environ, **settings}, stdout=subprocess.DEVNULL)


def register(admin: int, port: int) -> None:
    """Tell the server where the workflows are served."""
    url = f"http://{HOST}:{admin}/deployments"

    def is_registered() -> bool:
        try:
            return httpx.post(url, json={"uri": f"http://{HOST}:{port}"}, timeout=10).is_success
        except httpx.HTTPError:
            return False

    wait_until(is_registered)


async def measure(client: Any, port: int, worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Time all; return the worker that runs then."""
    loop = asyncio.get_running_loop()

    async def call(workflow: Any, given: Any) -> None:
        await client.workflow_call(workflow, str(next(_keys)), given)

    async def rows() -> None:
        await asyncio.gather(*(call(run_row, 10) for _ in range(50)))

    shapes = {
        "row of 10": in_loop(loop, lambda: call(run_row, 10)),
        "1 → 100 → 1": in_loop(loop, lambda: call(run_diamond, 100)),
        "50 rows of 10 at once": in_loop(loop, rows),
        "row of 1,000": in_loop(loop, lambda: call(run_row, LONG)),
    }
    await asyncio.to_thread(tell, shapes)
    if is_wanted("recovery"):
        marker = Path(os.environ["PEER_HOME"]) / "begun"
        running = asyncio.create_task(call(run_recovering, str(marker)))

        async def finish() -> None:
            await running

        def restart(_: int) -> None:
            nonlocal worker
            worker.kill()
            worker.wait()
            worker = start_worker(port)

        tell_samples("recovery", [await asyncio.to_thread(recovery_ms, marker, restart, in_loop(loop, finish))])
    return worker


async def main() -> None:
    """Start all, measure, end all."""
    ports = {name: free_port() for name in ("fabric", "ingress", "admin", "worker")}
    server = start_server(ports)
    worker = start_worker(ports["worker"])
    try:
        await asyncio.to_thread(register, ports["admin"], ports["worker"])
        async with restate.create_client(f"http://{HOST}:{ports['ingress']}") as client:
            client.client.timeout = PATIENCE_S  # else a busy machine fails a call after 5 s
            worker = await measure(client, ports["worker"], worker)
        if is_wanted("memory"):
            tell_samples("memory", [memory_mb([server.pid, worker.pid])])
    finally:
        for process in (worker, server):
            process.kill()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        asyncio.run(main())
