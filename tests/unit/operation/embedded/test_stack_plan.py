"""What a stack consists of."""

from __future__ import annotations

import sys
from pathlib import Path

from cantata.operation.embedded import ports, valkey
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.stack_plan import (
    StackPlan,
    StackService,
    flower_command,
    gateway_command,
    make_plan,
    worker_command,
)


def named_command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
    return [name, *queues, str(concurrency)]


def test_a_plan_has_a_coordinator_workers_for_agents_and_one_for_tools(home: Home) -> None:
    made = make_plan(home, agents=2, tools=3, ports={}, config="here.yaml", command=named_command)

    assert [(each.name, each.command) for each in made.services] == [
        ("coordinator", ["coordinator", "coordinator", "4"]),
        ("agents", ["agents", "agents", "100"]),
        ("agents-2", ["agents-2", "agents", "100"]),
        ("tools", ["tools", "tools", "3"]),
    ]
    assert made.environment == {
        "REDIS_URL": valkey.server_url(made.socket),
        "CANTATA_HOME": str(home.path),
        "CANTATA_CONFIG": str(Path("here.yaml").absolute()),
    }
    assert StackPlan.from_json(made.to_json()) == made


def test_a_plan_names_the_sockets_of_flower_and_gateway(home: Home) -> None:
    home.prepare()
    bound = ports.bind(home, {"flower": 0, "gateway": 0})

    made = make_plan(home, agents=1, tools=1, ports=bound, config=None, command=named_command)

    flower, gateway = bound["flower"], bound["gateway"]
    assert made.services[-2:] == (
        StackService("flower", (), flower_command(flower.number), listens=flower.listening.fileno()),
        StackService("gateway", (), gateway_command(gateway.number), listens=gateway.listening.fileno()),
    )
    assert (made.flower_url, made.gateway_url) == (flower.url, gateway.url)
    assert made.environment["CANTATA_FLOWER_URL"] == flower.url
    assert StackPlan.from_json(made.to_json()) == made
    ports.close(bound)


def test_a_worker_is_started_through_the_command_line() -> None:
    python = [sys.executable, "-P", "-m", "cantata_workers"]

    assert worker_command("a", ("agents", "gpu"), 7) == [*python, "agents", "gpu", "--name", "a", "--concurrency", "7"]
