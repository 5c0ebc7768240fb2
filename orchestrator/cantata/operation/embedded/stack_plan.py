"""The plan of a stack: the processes to run. A command writes it, and the supervisor reads it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cantata.operation.embedded.home import Home
from cantata.operation.embedded.ports import BoundPort
from cantata.operation.embedded.stack_member import VIRTUAL_TIME
from cantata.operation.embedded.stack_record import SERVER
from cantata.operation.embedded.valkey import find_server, server_command, server_url
from cantata.operation.extras import NO_BROKER

COORDINATOR_THREADS = 4  # its steps are milliseconds of Python: more threads only wait for each other
TASK_THREADS = 8  # they only send tasks of the user's application; nobody waits in them
AGENT_THREADS = 100  # model turns wait for the network, and occupy a thread each
FLOWER_PORT = 5555
GATEWAY_PORT = 8800

DEFAULT_PORTS = {"flower": FLOWER_PORT, "gateway": GATEWAY_PORT}

KEEP = b"k"  # on the supervisor's standard input: the stack is to outlive its command
ORPHAN_GRACE_S = 1.5  # for the workers when their command was killed: nobody waits for them, and their steps run again
SERVER_STOP_S = 10.0  # for the server to flush its log

PYTHON = (sys.executable, "-P")  # without the user's folder on the path: a `queue.py` there would hide Python's

WorkerCommand = Callable[[str, tuple[str, ...], int], list[str]]
"""(name, queues, concurrency) → the command line of a worker."""


@dataclass(frozen=True)
class StackService:
    """A process to start, and to restart when it exits."""

    name: str
    queues: tuple[str, ...]
    command: list[str]
    announces: bool = True
    """True if it calls `announce_ready`, which the stack waits for."""
    listens: int | None = None
    """The file descriptor of its listening socket; the supervisor keeps it open."""


@dataclass(frozen=True)
class StackPlan:
    """The input of the supervisor."""

    home: str
    socket: str
    flower_url: str | None
    gateway_url: str | None
    environment: dict[str, str]
    """Variables of the child processes, beside the environment of the command."""
    ports: dict[str, int]
    """Service → its port."""
    server: StackService
    services: tuple[StackService, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StackPlan:
        found = json.loads(text)
        services = tuple(
            StackService(**{**each, "queues": tuple(each["queues"])})
            for each in (found.pop("server"), *found.pop("services"))
        )
        return cls(**found, server=services[0], services=services[1:])


def make_plan(
    home: Home,
    *,
    agents: int,
    tools: int,
    ports: Mapping[str, BoundPort],
    config: str | Path | None,
    command: WorkerCommand,
    virtual_time: bool = False,
    server_only: bool = False,
) -> StackPlan:
    """Return the plan of a server, a coordinator, `agents` agents workers, a tools worker with `tools` slots, and services with a port.

    With `server_only` there are no workers.
    If CANTATA_APP names the user's Celery application, a worker that calls its tasks is among them.
    """
    socket_path = home.make_socket()
    url = server_url(socket_path)
    flower_url = ports["flower"].url if "flower" in ports else None
    environment = {"REDIS_URL": url, "CANTATA_HOME": str(home.path)}
    if os.environ.get("CANTATA_BROKER_URL") == NO_BROKER:
        environment["CANTATA_BROKER_URL"] = (
            ""  # it is meant for programs; the workers of a stack send through its Redis
        )
    if config := config or os.environ.get("CANTATA_CONFIG"):
        environment["CANTATA_CONFIG"] = str(Path(config).absolute())
    if virtual_time:
        environment[VIRTUAL_TIME] = "1"
    if flower_url is not None:
        environment["CANTATA_FLOWER_URL"] = flower_url
    return StackPlan(
        home=str(home.path),
        socket=str(socket_path),
        flower_url=flower_url,
        gateway_url=ports["gateway"].url if "gateway" in ports else None,
        environment=environment,
        ports={name: port.number for name, port in ports.items()},
        server=StackService(SERVER, (), server_command(find_server(), socket_path, home.data), announces=False),
        services=(
            *_with_metrics_ports([] if server_only else _workers(agents, tools, command), 1),
            *_port_service(ports, "flower", flower_command),
            *_with_metrics_ports(_port_service(ports, "gateway", gateway_command), 0),
        ),
    )


def worker_command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
    """Return the command line of a worker process."""
    return [*PYTHON, "-m", "cantata_workers", *queues, "--name", name, "--concurrency", str(concurrency)]


def flower_command(port: int) -> list[str]:
    """Return the command line of Flower: on loopback, without files on disk. It finds its Redis in the environment."""
    address = ["--host", "127.0.0.1", "--port", str(port), "--url-prefix", ""]
    return [*PYTHON, "-m", "cantata.surfaces.cli", "flower", *address, "--persistent=false"]


def gateway_command(port: int) -> list[str]:
    """Return the command line of the gateway, on loopback. It finds its Redis and its configuration in the environment."""
    return [*PYTHON, "-m", "cantata.surfaces.cli", "gateway", "--port", str(port)]


def cpu_count() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _workers(agents: int, tools: int, command: WorkerCommand) -> Iterable[StackService]:
    workers = [("coordinator", "coordinator", COORDINATOR_THREADS)]
    workers += [
        (f"agents-{number}" if number > 1 else "agents", "agents", AGENT_THREADS) for number in range(1, agents + 1)
    ]
    workers += [("tools", "tools", tools)] if tools else []
    workers += [("tasks", "tasks", TASK_THREADS)] if os.environ.get("CANTATA_APP") else []
    for name, queue, concurrency in workers:
        yield StackService(name, (queue,), command(name, (queue,), concurrency))


def _with_metrics_ports(services: Iterable[StackService], number: int) -> Iterable[StackService]:
    """Yield the services with ports for their metrics, if the environment names one: the gateway's is that port, the workers' follow it."""
    from cantata.operation.metrics.scrape_address import port_after, scrape_address  # noqa: PLC0415  # loads pydantic

    shown = scrape_address()
    for port, service in enumerate(services, number):
        options = ["--metrics-port", str(port_after(shown.port, port))] if shown else []
        yield replace(service, command=[*service.command, *options])


def _port_service(
    ports: Mapping[str, BoundPort], name: str, command: Callable[[int], list[str]]
) -> Iterable[StackService]:
    if port := ports.get(name):
        yield StackService(name, (), command(port.number), listens=port.listening.fileno())
