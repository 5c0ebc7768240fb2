"""Code of workflows that would differ in a replay."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from cantata.config.user_code.determinism import faults_of
from cantata.flows.definitions import Agent, Definitions, Team
from tests.unit.messages.entries import Entry, entries, text, without

HEAD = """import asyncio, datetime, json, os, random, time
import random as chance
from datetime import datetime as clock
from time import sleep
from uuid import uuid4
from cantata import Workflow, workflow

def helper():
    return time.time()

def effect():
    return time.time()

async def later():
    pass

async def polite(flow: Workflow, name):
    await flow.agnet("clerk", name)

@workflow
async def trip(wf, x=1):
    """
DEFINITIONS = Definitions(
    agents={"clerk": Agent(model="openai/x")}, teams={"panel": Team(mode="broadcast", agents=["clerk"])}
)

BODIES: dict[str, list[str]] = {
    "code that differs in a replay": [
        "return time.time()",
        "return datetime.datetime.now()",
        "return clock.utcnow()",
        "return datetime.date.today()",
        "return random.choice([1, 2])",
        "return chance.random()",
        "return uuid4()",
        "sleep(1)",
        "return open('file').read()",
        "return os.environ['HOME']",
        "return await asyncio.to_thread(print)",
        "return helper()",
        "await wf.optoins(retries=2).agent('clerk')",
        "await wf.options(retries=2, at_most_once=True).call(effect)",
        "await wf.options(retries=2).agnet('clerk')",
        "[await x for x in asyncio.as_completed([later(), later()])]",
        "[await x for x in asyncio.as_completed(later() for y in [1])]",
        "await polite(wf, 'you')",
        "await wf.agent('clerc', 'hello')",
        "await wf.options(retries=1).tool('find', x=1)",
        "await wf.start('trip2')",
        "for each in {'a', 'b'}:\n        await wf.call(effect)",
        "return [each for each in set(x)]",
        "return print(*frozenset(x))",
        "async def inner():\n        return random.random()\n    return await inner()",
    ],
}


def found() -> Iterator[Entry]:
    """Check each body."""
    with tempfile.TemporaryDirectory() as name:
        yield from entries(BODIES, lambda body: _checked(Path(name), body), text)


def _checked(folder: Path, body: str) -> list[str]:
    (folder / "trip.py").write_text(f"{HEAD}{body}\n")
    return without(folder, [str(fault) for fault in faults_of("trip:trip", folder=folder, definitions=DEFINITIONS)])
