"""The parts of `./run faults --fuzz`: the gateway, chats, chains that run, and what reads texts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cantata.operation.embedded import Stack
from cantata.testing import ScriptedModels
from tests.faults.fuzz.neighbour import Neighbour, compare
from tests.faults.fuzz.readers import Readers, by_hypothesis, by_mutation
from tests.faults.fuzz.requests import PATIENCE_S, RUN_S, Requests
from tests.faults.fuzz.watch import Watch
from tests.faults.past import Violation
from tests.integration.gateway.conftest import ANNA, OTTO, TENANTS, Deployment, Gateway, start
from tests.waiting import until

WARM = 0.3
"""The share of the readers' time after which sizes are taken; of the other parts it is half."""
HARMLESS = 0.25
"""The share of a part's time in which the input is harmless."""
TURNS = 4
"""How often harmless and hostile input take turns: what else the machine does is beside both."""
RATE = "100000"  # requests a second: what is fed is not held back

Round = Callable[[Requests, random.Random], None]


@dataclass(frozen=True)
class Fed:
    """What came of a part."""

    summary: str
    violations: list[Violation]


@contextmanager
def world(folder: Path) -> Iterator[tuple[Deployment, Gateway]]:
    """A stack and a gateway of their own, with two tenants: anna, who is hostile, and otto."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TENANTS))
    with ScriptedModels() as models, start(folder / "home", models, agents=2) as stack:
        desk = Deployment(folder, stack, models)
        with desk.gateway("--rate", RATE, "--tokens-file", str(tokens)) as gateway:
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


def by_plain_requests(requests: Requests, chance: random.Random) -> None:
    """Ask what anybody asks, as often as `by_schema` in a round."""
    for _ in range(5):
        requests.plain_chain()
        requests.plain_list()


def by_plain_chats(requests: Requests, chance: random.Random) -> None:
    """Say plain things over WebSockets."""
    asyncio.run(requests.chats(chance, are_odd=False))


def by_plain_chains(requests: Requests, chance: random.Random) -> None:
    """Have a chain run."""
    requests.plain_chain()


def feed(
    desk: Deployment, gateway: Gateway, chance: random.Random, seconds: float, rounds: Round, harmless: Round
) -> Fed:
    """Feed a gateway for some time, then see that all is as it was: the processes, their sizes, and a plain run.

    Harmless and hostile input take turns, over as many connections at once; a second tenant beside notices no difference.
    """
    watch = Watch({**_processes(desk.stack), "gateway": gateway.process.pid}, desk.folder)
    with closing(Requests(gateway.url, ANNA)) as requests, closing(Neighbour(gateway.url, OTTO)) as neighbour:
        harmless(requests, chance)  # the first round starts what is started once
        harmless_s, hostile_s, ended = list[float](), list[float](), set[str]()
        for turn in range(TURNS):
            for each, share, took_s in ((harmless, HARMLESS, harmless_s), (rounds, 1 - HARMLESS, hostile_s)):
                with neighbour.beside(took_s):
                    _repeat(partial(each, requests, chance), seconds * share / TURNS)
                _wait_for_all(requests, ended)
            if turn == TURNS // 2 - 1:
                watch.warm()
    now = {**_processes(desk.stack), "gateway": gateway.process.pid}
    told, slower = compare(harmless_s, hostile_s)
    violations = [*requests.violations, *watch.violations(now), *_plain_run(gateway), *neighbour.violations, *slower]
    return Fed(f"{requests.sent} sent, {len(requests.runs)} runs; {watch.told()}; {told}", violations)


def read(chance: random.Random, seconds: float) -> Fed:
    """Read changed and made texts for some time."""
    readers = Readers()
    watch = Watch({"this process": os.getpid()}, Path(os.devnull))

    def once() -> None:
        by_mutation(readers, chance)
        by_hypothesis(readers, chance.randrange(10**6))

    _repeat(once, seconds, watch)
    return Fed(f"{readers.read} read; {watch.told()}", [*readers.violations, *watch.violations(watch.processes)])


def _repeat(once: Callable[[], None], seconds: float, watch: Watch | None = None) -> None:
    """Do it until the time is over, and once at least; sizes are taken on the way."""
    since, is_warm = time.monotonic(), watch is None
    while True:
        once()
        if watch and not is_warm and time.monotonic() - since > seconds * WARM:
            is_warm = True
            watch.warm()
        if time.monotonic() - since > seconds:
            return


def _processes(stack: Stack) -> Mapping[str, int]:
    return {
        process.name: process.pid
        for process in stack.processes()
        if process.alive and process.name not in ("supervisor", "valkey")
    }


def _wait_for_all(requests: Requests, ended: set[str]) -> None:
    """Wait until all accepted chains are over, and add them to those that have ended; turns have no time-out as short, and are left."""
    for run_id in sorted(requests.runs - ended):
        ended.add(run_id)
        try:
            until(partial(requests.is_over, run_id), f"the end of run {run_id}", RUN_S + PATIENCE_S, pause_s=0.1)
        except TimeoutError as error:
            requests.violations.append(Violation(run_id, "", "an end within its time-out", str(error)))


def _plain_run(gateway: Gateway) -> list[Violation]:
    chain = {"nodes": [{"node_id": "n", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}], "entry_node": "n"}
    with gateway.http(ANNA) as http:
        answer = http.post("/chains", params={"wait": 30}, json=chain).json()
    output = (answer.get("result") or {}).get("final_output")
    return [] if output == 3 else [Violation("", "", "a plain run that is served afterwards, with 3", str(answer))]
