"""A workflow that does what a plan says, and plans by chance."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies

from cantata import StepError, Workflow, workflow
from cantata.flows.definitions import Definitions, PythonWorkflow
from tests.integration.workflows import conftest
from tests.integration.workflows.desk import add, fail

SIGNAL = "answered"
"""The waits whose names begin so are signalled; others pass by their time."""
OWN = ("planned", "branches")


def definitions() -> Definitions:
    """The workflows of the desk, and those of this module."""
    desk = conftest.definitions()
    own = {name: PythonWorkflow(function=f"{__name__}:{name}") for name in OWN}
    return desk.model_copy(update={"workflows": {**desk.workflows, **own}})


@workflow
async def branches(wf: Workflow, until: int) -> list[Any]:
    """Loop with branches: what is asked next depends on what was answered."""
    found: list[Any] = []
    value = 0
    while True:
        value = await wf.call(add, value)
        if value % 3 == 0:
            continue
        if value > until:
            break
        for name in {"odd": [value], "even": [value, value]}["odd" if value % 2 else "even"]:
            try:
                found.append(await (wf.call(add, name, b=10) if name % 4 else wf.call(fail, str(name))))
            except StepError as error:
                found.append(error.code)
            else:
                found.append("done")
    else:
        found.append("never")
    return found


@workflow
async def planned(wf: Workflow, plan: list[dict[str, Any]]) -> list[Any]:
    """Do each statement of a plan; return what came of each."""
    return [await _do(wf, statement) for statement in plan]


async def _do(wf: Workflow, statement: dict[str, Any]) -> Any:
    (kind, given), *_ = statement.items()
    if kind == "call":
        return await wf.call(add, given)
    if kind == "gather":
        return await wf.gather(*(wf.call(add, number) for number in given))
    if kind == "fail":
        try:
            return await wf.call(fail, given)
        except StepError as error:
            return error.code
    if kind == "break":
        return await wf.call(fail, "broken")  # all alike, since any of several at once may be the first
    if kind == "tasks":
        return await asyncio.gather(*(planned(wf, branch) for branch in given))
    if kind == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(planned(wf, branch)) for branch in given]
        return [task.result() for task in tasks]
    if kind == "race":
        first, late = asyncio.ensure_future(planned(wf, given)), asyncio.ensure_future(wf.wait("never"))
        done, _ = await asyncio.wait([late, first], return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        return [task.result() for task in done]
    if kind == "crowd":
        futures = [wf.call(add, number) for number in given]
        tasks = [asyncio.create_task(planned(wf, [{"call": number}])) for number in given]
        either: set[asyncio.Future[Any]] = {*tasks, *futures}
        done, _ = await asyncio.wait(either)
        found = [await wf.call(add, future.result(), 2) if future in futures else future.result() for future in done]
        return sorted(found, key=str)  # each replay of a run has the order of the set; another run may have another one
    if kind == "hurry":
        try:
            async with asyncio.timeout(given):
                return await wf.wait("never")
        except TimeoutError:
            return "late"
    if kind == "wait":
        return await wf.wait(f"{SIGNAL}-{given}")
    if kind == "ask":
        return await wf.wait(f"asked-{given}", timeout_s=60, default=given)
    if kind == "sleep":
        return await (wf.sleep(given) if given % 2 else asyncio.sleep(given))
    if kind == "child":
        return await wf.workflow("planned", plan=given)
    if kind == "chance":
        return (await wf.call(add, int(wf.random() * 1000)) > 0, len(str(wf.uuid4())), wf.now().year > given)
    if kind == "patch":
        return wf.patched(f"patch-{given}")
    try:
        return await wf.call(add, given)
    finally:
        await wf.call(add, -given)


def plans() -> strategies.SearchStrategy[list[dict[str, Any]]]:
    """Plans by chance; a `break` fails the workflow."""
    number = strategies.integers(1, 9)
    leaf = strategies.one_of(
        *(strategies.builds(lambda value, kind=kind: {kind: value}, number) for kind in KINDS),
        strategies.builds(lambda numbers: {"gather": numbers}, strategies.lists(number, max_size=4)),
        strategies.builds(lambda numbers: {"crowd": numbers}, strategies.lists(number, min_size=1, max_size=4)),
    )

    def nested(inner: strategies.SearchStrategy[dict[str, Any]]) -> strategies.SearchStrategy[dict[str, Any]]:
        branch = strategies.lists(inner, min_size=1, max_size=2)
        branches = strategies.lists(branch, min_size=1, max_size=3)
        return strategies.one_of(
            strategies.builds(lambda value: {"tasks": value}, branches),
            strategies.builds(lambda value: {"group": value}, branches),
            strategies.builds(
                lambda value: {"race": value},
                strategies.lists(strategies.builds(lambda n: {"call": n}, number), max_size=3),
            ),
            strategies.builds(lambda value: {"child": value}, branch),
        )

    return strategies.lists(strategies.recursive(leaf, nested, max_leaves=6), max_size=4)


KINDS = ("call", "call", "fail", "hurry", "wait", "ask", "sleep", "chance", "patch", "finally", "break")
