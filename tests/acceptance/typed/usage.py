"""A program of a user, which only type checkers read: mypy --strict, and pyright in strict mode. A wrong call must be an error of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from cantata import (
    AsyncClient,
    ChainResponse,
    ChainRun,
    Client,
    RunError,
    RunEvent,
    RunResult,
    ToolContext,
    TurnRequest,
    TurnRun,
    Workflow,
    tool,
    workflow,
)
from cantata.testing import KillableStack, Rule, ScriptedModels, ToolCall, run_inline


@dataclass
class Price:
    amount: int
    currency: str


def price(item: str) -> Price:
    return Price(len(item), "EUR")


async def send(receipt: str) -> bool:
    return bool(receipt)


@tool
def plain(text: str) -> int:
    return len(text)


@tool(pure=True)
def counted(text: str, context: ToolContext) -> int:
    return len(text) + len(context.run_id)


@workflow
async def order(wf: Workflow, item: str, count: int = 1) -> str:
    found = await wf.call(price, item)
    assert_type(found, Price)
    assert_type(await wf.call(send, "receipt"), bool)
    assert_type(await wf.start("order", item=item), str)
    await wf.call(price, 4)  # type: ignore[call-overload]  # pyright: ignore  # noqa: PGH003  # pyright names one of two rules, by the order in which it reads
    if await wf.options(retries=2).wait("approve", timeout_s=60, default=False):
        await wf.sleep(1.5)
    return f"{found.amount * count}"


def submit(client: Client) -> str:
    turn = client.submit_turn("Is tea dear?", agent="clerk", labels={"tenant": "a"})
    assert_type(turn, TurnRun)
    assert_type(turn.result(timeout_s=60), RunResult)
    assert_type(client.submit_workflow("flow", "a text"), TurnRun)
    run = client.submit_workflow(order, {"item": "tea"}, idempotency_key="order-1")
    assert_type(run, ChainRun)
    run.signal("approve", True)
    try:
        response = run.result().raise_for_status()
    except RunError as error:
        return str(error)
    assert_type(response, ChainResponse)
    client.submit_turn(4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.submit_turn("tea", agnet="clerk")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return "".join(event.type for event in run.log()) + "".join(
        f"{row.row}: {row.status}" for row in client.batch(["tea"], agent="clerk")
    )


async def submit_async() -> RunResult:
    async with AsyncClient(config="shop.yaml") as client:
        run = await client.submit_turn("Is tea dear?", agent="clerk")
        async for event in run.events():
            assert_type(event, RunEvent)
        return await run.result(timeout_s=60)


def test_the_order(scripted_model: ScriptedModels, cantata_stack: KillableStack) -> None:
    scripted_model.script([Rule(match="tea", tool_calls=(ToolCall(name="price", arguments={"item": "tea"}),))])
    assert_type(run_inline(TurnRequest(text="tea", agent="clerk")), RunResult)
    assert_type(run_inline(order, {"item": "tea"}, signals={"approve": True}), ChainResponse)
    assert_type(cantata_stack.submit("order", {"item": "tea"}), ChainRun)
