"""Workflows in Python of the fault suite; their tools write to the journal."""

from __future__ import annotations

import asyncio

from cantata import StepError, Workflow, workflow


@workflow
async def code(wf: Workflow, journal: str, linger_s: float = 0.0) -> int:
    """A step, three at once, a wait, a step."""
    one = await wf.tool("work", journal=journal)
    many = await wf.gather(
        *(wf.tool("work", journal=journal, value=one, seconds=linger_s if number == 1 else 0.0) for number in range(3))
    )
    given = await wf.wait("approve")
    return int(await wf.tool("quick", journal=journal, value=sum(many) + given))


@workflow
async def race(wf: Workflow, journal: str, linger_s: float = 0.0) -> int:
    """Take the first of two, again and again."""
    value = 0
    for number in range(3):
        wins = asyncio.ensure_future(
            wf.tool("work", journal=journal, value=value, seconds=linger_s if number == 1 else 0.0)
        )
        late = asyncio.ensure_future(wf.wait(f"never-{number}"))
        done, _ = await asyncio.wait([wins, late], return_when=asyncio.FIRST_COMPLETED)
        assert done == {wins}
        value = wins.result()
    return value


@workflow
async def mixed(wf: Workflow, journal: str, tag: str, linger_s: float = 0.0) -> str:
    """Sleep, ask a model, have a child, catch a failure, hurry."""
    await wf.sleep(0.2)
    said, child = await asyncio.gather(wf.agent("lou", tag), wf.workflow("race", journal=journal))
    try:
        await wf.wait("nobody", timeout_s=0.2)
    except StepError as error:
        missed = error.code
    try:
        async with asyncio.timeout(0.2):
            await wf.wait("never")
    except TimeoutError:
        last = await wf.tool("stumble", journal=journal, value=child)
    await wf.tool("work", journal=journal, seconds=linger_s)
    return f"{said} {missed} {last}"
