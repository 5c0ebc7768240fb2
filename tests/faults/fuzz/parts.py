"""The parts of `./run faults --fuzz`: the gateway, chats, chains that run, and what reads texts."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from cantata.embedded import Stack
from cantata.testing import ScriptedModels
from tests.faults.fuzz.readers import Readers, by_hypothesis, by_mutation
from tests.faults.fuzz.requests import PATIENCE_S, RUN_S, Requests
from tests.faults.fuzz.watch import Watch
from tests.faults.past import Violation
from tests.integration.gateway.conftest import Deployment, Gateway, start
from tests.waiting import until

WARM = 0.3
"""The share of a part's time after which sizes are taken."""
RATE = "100000"  # requests a second: what is fed is not held back

Round = Callable[[Requests, random.Random], None]


@dataclass(frozen=True)
class Fed:
    """What came of a part."""

    summary: str
    violations: list[Violation]


@contextmanager
def world(folder: Path) -> Iterator[tuple[Deployment, Gateway]]:
    """A stack and a gateway of their own."""
    with ScriptedModels() as models, start(folder / "home", models, agents=2) as stack:
        desk = Deployment(folder, stack, models)
        with desk.gateway("--rate", RATE) as gateway:
            yield desk, gateway


def by_schema(requests: Requests, chance: random.Random) -> None:
    """Ask what the OpenAPI document allows, and what it does not."""
    requests.by_schema(chance.randrange(10**6))


def by_chats(requests: Requests, chance: random.Random) -> None:
    """Say odd things over WebSockets."""
    asyncio.run(requests.chats(chance))


def by_chains(requests: Requests, chance: random.Random) -> None:
    """Have changed chains run."""
    requests.chain(chance)


def feed(desk: Deployment, gateway: Gateway, chance: random.Random, seconds: float, rounds: Round) -> Fed:
    """Feed a gateway for some time, then see that all is as it was: the processes, their sizes, and a plain run."""
    watch = Watch({**_processes(desk.stack), "gateway": gateway.process.pid}, desk.folder)
    with closing(Requests(gateway.url)) as requests:
        _repeat(lambda: rounds(requests, chance), seconds, watch)
        _wait_for_all(requests)
    now = {**_processes(desk.stack), "gateway": gateway.process.pid}
    violations = [*requests.violations, *watch.violations(now), *_plain_run(gateway)]
    return Fed(f"{requests.sent} sent, {len(requests.runs)} runs; {watch.told()}", violations)


def read(chance: random.Random, seconds: float) -> Fed:
    """Read changed and made texts for some time."""
    readers = Readers()
    watch = Watch({"this process": os.getpid()}, Path(os.devnull))

    def once() -> None:
        by_mutation(readers, chance)
        by_hypothesis(readers, chance.randrange(10**6))

    _repeat(once, seconds, watch)
    return Fed(f"{readers.read} read; {watch.told()}", [*readers.violations, *watch.violations(watch.processes)])


def _repeat(once: Callable[[], None], seconds: float, watch: Watch) -> None:
    """Do it until the time is over, and once at least; sizes are taken on the way."""
    since, is_warm = time.monotonic(), False
    while True:
        once()
        if not is_warm and time.monotonic() - since > seconds * WARM:
            is_warm = True
            watch.warm()
        if time.monotonic() - since > seconds:
            return


def _processes(stack: Stack) -> Mapping[str, int]:
    return {process.name: process.pid for process in stack.processes() if process.alive and process.name not in ("supervisor", "valkey")}


def _wait_for_all(requests: Requests) -> None:
    """Wait until all accepted chains are over; turns have no time-out as short, and are left."""
    for run_id in sorted(requests.runs):
        try:
            until(partial(requests.is_over, run_id), f"the end of run {run_id}", RUN_S + PATIENCE_S, pause_s=0.1)
        except TimeoutError as error:
            requests.violations.append(Violation(run_id, "", "an end within its time-out", str(error)))


def _plain_run(gateway: Gateway) -> list[Violation]:
    chain = {"nodes": [{"node_id": "n", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}], "entry_node": "n"}
    answer = httpx.post(f"{gateway.url}/chains", params={"wait": 30}, json=chain, timeout=PATIENCE_S).json()
    output = (answer.get("result") or {}).get("final_output")
    return [] if output == 3 else [Violation("", "", "a plain run that is served afterwards, with 3", str(answer))]
