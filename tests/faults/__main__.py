"""`./run faults [--minutes N] [--seed S]`: rows, diamonds and maps while workers are killed -9 at random; a seed replays the choices."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from orchestrator.client import ChainRun, Client, EmbeddedClient
from tests.integration.fleet.conftest import Journal, definitions, tool

PATIENCE_S = 120.0
LATEST_KILL_S = 2.0
STEP_S = 0.3


def main() -> int:
    """Run rounds until the time is over; 1 at the first violation."""
    parser = argparse.ArgumentParser(prog="./run faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    give_up = time.monotonic() + options.minutes * 60
    rounds = 0
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder, Client.embedded(Path(folder, "home"), config=definitions(), agents=1, tools=2) as client:
        while time.monotonic() < give_up:
            faults = one_round(client, chance, Journal(Path(folder, f"{rounds}.jsonl")))
            rounds += 1
            if faults:
                print(f"round {rounds}, seed {options.seed}:", *faults, sep="\n  ")
                return 1
    print(f"{rounds} rounds, no violation")
    return 0


def one_round(client: EmbeddedClient, chance: random.Random, journal: Journal) -> list[str]:
    """Some runs, some kills, and what is wrong afterwards."""
    runs = {name: client.submit_chain(request(name, journal)) for name in ("row", "diamond", "map")}
    for _ in range(chance.randint(1, 3)):
        time.sleep(chance.uniform(0, LATEST_KILL_S))  # chance is the test here; nothing is waited for
        kill_one(client, chance)
    return [fault for name, run in runs.items() for fault in check(name, run, journal)]


def request(shape: str, journal: Journal) -> dict[str, Any]:
    """A chain whose steps write to the journal under names of their own."""

    def work(node_id: str, **fields: Any) -> dict[str, Any]:
        return tool(node_id, "slow", journal=str(journal.path), mark=f"{shape}.{node_id}", seconds=STEP_S, **fields)

    if shape == "row":
        return {"nodes": [work("a", next_node="b"), work("b", next_node="c"), work("c")], "entry_node": "a"}
    if shape == "diamond":
        sides = [work(name, deps=["a"]) for name in ("b", "c", "d")]
        return {"nodes": [work("a"), *sides, work("e", deps=["b", "c", "d"])], "entry_node": "a"}
    body = {
        "node_id": "one",
        "kind": "tool",
        "name": "slow",
        "input": {"journal": str(journal.path), "seconds": STEP_S},
        "input_map": {"mark": "_item"},
    }
    nodes = [{"node_id": "m", "kind": "map", "items_path": "input.items", "map_node": "one"}, body]
    return {"nodes": nodes, "entry_node": "m", "initial_input": {"items": [f"map.m/{i}" for i in range(8)]}}


def kill_one(client: EmbeddedClient, chance: random.Random) -> None:
    """Kill -9 one worker, or one child of the tools worker."""
    workers = {p.name: p.pid for p in client.stack.processes() if p.alive and p.name in ("coordinator", "agents", "tools")}
    name = chance.choice(["coordinator", "agents", "tools", "child", "child"])
    if name == "child" and "tools" in workers:
        children = subprocess.run(["pgrep", "-P", str(workers["tools"])], capture_output=True, text=True, check=False).stdout.split()
        victims = [int(child) for child in children]
    else:
        victims = [workers[name]] if name in workers else []
    if victims:
        try:
            os.kill(chance.choice(victims), signal.SIGKILL)
        except ProcessLookupError:
            return


def check(name: str, run: ChainRun, journal: Journal) -> list[str]:
    """What the journal and the ledger say of a run that is over: it succeeded, and nothing was started after its outcome was recorded."""
    response = run.result(PATIENCE_S)
    if not response.success:
        return [f"{name} ended {response.status}: {response.error}"]
    faults = []
    done_at = {event.step: event.at_ms for event in run.log() if event.type == "done"}
    for step_id, step in run.record().steps.items():
        mark = f"{name}.{step_id}"
        starts = [line["at"] * 1000 for line in journal.of("start", mark)]
        if starts and len(starts) > step.attempt:
            faults.append(f"{mark} was started {len(starts)} times in {step.attempt} attempts")
        if starts and max(starts) > done_at[step_id] + 1:
            faults.append(f"{mark} was started again after its outcome was recorded")
        if step.spec.kind == "tool.call" and not starts:
            faults.append(f"{mark} has an outcome but never ran")
    return faults


if __name__ == "__main__":
    sys.exit(main())
