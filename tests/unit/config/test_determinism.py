"""What is found in the source of workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantata.config.user_code.determinism import faults_of
from cantata.flows.definitions import Agent, Definitions, Team

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


def found(folder: Path, body: str) -> list[str]:
    """The messages about a workflow with this body."""
    (folder / "trip.py").write_text(HEAD + body + "\n")
    return [str(fault) for fault in faults_of("trip:trip", folder=folder, definitions=DEFINITIONS)]


@pytest.mark.parametrize(
    "body",
    [
        "return await wf.call(effect)",
        "return await wf.options(queue='slow').agent('panel', wf.run_id), await wf.agent(x), wf.patched('new')",
        "return await wf.gather(wf.sleep(1), wf.wait('clerc'))",
        "return wf.now(), wf.random(), wf.uuid4()",
        "await asyncio.sleep(1)",
        "return json.dumps([x]), os.path.join('a', 'b')",
        "random_number = wf.random()\n    return random_number",
    ],
)
def test_what_is_the_same_is_let_alone(tmp_path: Path, body: str) -> None:
    assert found(tmp_path, body) == []


def test_a_function_that_is_no_workflow(tmp_path: Path) -> None:
    found(tmp_path, "pass")

    assert "is not a workflow" in str(faults_of("trip:helper", folder=tmp_path)[0])
    assert "function 'trop' is not in trip.py; did you mean 'trip'?" in str(faults_of("trip:trop", folder=tmp_path)[0])
    assert "module 'tripp' is not in" in str(faults_of("tripp:trip", folder=tmp_path)[0])
