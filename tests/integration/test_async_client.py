"""Coroutines submit runs, wait for them and follow their events: a coroutine that waits holds no thread, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from cantata import AsyncClient, Client, ConfigError, UnknownRunError
from cantata.client.client import EmbeddedClient
from cantata.flows.definitions import Chain, Definitions, Tool
from cantata.ledger.runs.streams import StreamsEnded
from cantata.values import JsonValue
from tests.waiting import until as wait_until

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20

PATIENCE_S = 60.0
WAITERS = 500
RUNS = 50
GATE = {"node_id": "gate", "kind": "wait"}
COUNT = {"node_id": "count", "kind": "tool", "name": "count", "input_map": {"text": "input.text"}}
Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClient]:
    """A client with a stack of its own."""
    folder = tmp_path_factory.mktemp("async")
    (folder / "counting.py").write_text("def count(text: str) -> int:\n    return len(text.split())\n")
    definitions = Definitions(folder=str(folder), tools={"count": Tool(function="counting:count")})
    with Client.embedded(folder / "home", config=definitions, agents=0, tools=1) as client:
        yield client


@asynccontextmanager
async def connected(stack: EmbeddedClient, threads: int = 8) -> AsyncIterator[AsyncClient]:
    async with (
        asyncio.timeout(PATIENCE_S),
        AsyncClient(stack.redis_url, config=stack.definitions, threads=threads) as client,
    ):
        yield client
        assert (await client.streams()).followed == 0, "somebody still follows a run"


def run(main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run a coroutine in an event loop of its own, which leaves no thread behind."""
    answer = asyncio.run(main())
    left = [thread for thread in threading.enumerate() if thread.name.startswith("cantata-client")]
    for thread in left:
        thread.join(PATIENCE_S)
    assert [thread for thread in left if thread.is_alive()] == []
    return answer


async def until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait for a condition; the test's own limit ends it."""
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.005)


def test_a_chain_is_submitted_followed_and_forked(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            chain = await client.submit_chain(
                {"entry_node": "count", "nodes": [COUNT]}, initial_input={"text": "a b c"}
            )
            events = [(event.node_id, event.phase) async for event in chain.events()]
            response = await chain.result(timeout_s=PATIENCE_S)
            fork = await client.fork(chain.run_id, "count", changes={"input.text": "a b"})
            forked = await fork.result()
            found = await client.run(chain.run_id)

            assert events == [("count", "start"), ("count", "done")]
            assert response.outputs == {"count": 3}
            assert response == await chain.so_far() == await found.result()
            assert forked.model_dump()["outputs"] == {"count": 2}
            assert await chain.status() == "succeeded"
            assert {each.run_id for each in await client.runs(most=100)} >= {chain.run_id, fork.run_id}

    run(main)


def test_events_are_those_that_the_client_has_from_any_offset(stack: EmbeddedClient) -> None:
    done = stack.submit_chain({"entry_node": "count", "nodes": [COUNT]}, initial_input={"text": "a b c"})
    done.result(PATIENCE_S)
    expected = list(done.log())

    async def main() -> None:
        async with connected(stack) as client:
            chain = await client.run(done.run_id)
            for after in range(len(expected) + 1):
                assert [event async for event in chain.log(after)] == expected[after:]
            assert [event async for event in chain.log(timeout_s=0)] == expected
            assert [event async for event in chain.events()] == list(done.events())

    run(main)


def test_a_run_that_waits_is_signalled_and_one_is_cancelled(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            signalled, cancelled = [
                await client.submit_chain({"entry_node": "gate", "nodes": [GATE]}) for _ in range(2)
            ]
            results = asyncio.gather(signalled.result(), cancelled.result())

            assert await signalled.signal("gate", "go") in ("taken", "kept")
            assert await cancelled.cancel() == "cancelled"
            first, second = await results

            assert first.outputs == {"gate": "go"}
            assert not second.success

    run(main)


def test_hundreds_of_coroutines_wait_without_a_thread(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack, threads=1) as client:
            runs = [await client.submit_chain({"entry_node": "gate", "nodes": [GATE]}) for _ in range(RUNS)]
            results = [asyncio.create_task(each.result()) for each in runs for _ in range(WAITERS // RUNS)]
            streams = await client.streams()
            await until(lambda: streams.followed == RUNS)

            assert await runs[0].status() in ("accepted", "running", "waiting"), "the one thread is free"
            for number, each in enumerate(runs):
                await each.signal("gate", number)
            outputs = [(await result).outputs["gate"] for result in results]

            assert outputs == [number for number in range(RUNS) for _ in range(WAITERS // RUNS)]

    run(main)


def test_a_coroutine_that_gives_up_leaves_nothing_behind(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            waiting = await client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
            streams = await client.streams()
            await asyncio.sleep(0)  # the reader starts a task that reads idle streams
            before, events = asyncio.all_tasks(), waiting.log()
            assert (await anext(waiting.log())).type == "accepted", "and nobody reads on"
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(waiting.result()) for _ in range(20)]
            tasks.append(asyncio.create_task(collect(events)))
            await until(lambda: streams.followed == 2)  # its events, its end

            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)

            assert {type(each) for each in ended} == {asyncio.CancelledError}
            assert streams.followed == 0
            assert asyncio.all_tasks() == before
            with pytest.raises(TimeoutError, match=r"is not over after 0\.05 s; it goes on"):
                await waiting.result(timeout_s=0.05)
            await waiting.cancel()
            assert not (await waiting.result(timeout_s=0)).success, "it is over already"

    run(main)


def test_runs_and_steps_that_are_unknown_and_faults_are_raised(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            with pytest.raises(UnknownRunError):
                await client.run("nobody")
            with pytest.raises(ConfigError, match="agent"):
                await client.submit_turn("hello", agent="nobody")

    run(main)


@pytest.mark.slow("it looks for a lost run every five seconds")
def test_a_run_that_redis_lost_is_not_waited_for(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            lost = await client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
            await until(lambda: is_status(lost.status(), "waiting"))
            result = asyncio.create_task(lost.result())
            stack.redis.delete(*stack.redis.keys(f"*{lost.run_id}*"))
            with pytest.raises(UnknownRunError):
                await result

    run(main)


async def is_status(status: Awaitable[str], wanted: str) -> bool:
    return await status == wanted


@pytest.mark.slow("Redis is killed, and started again by the stack")
def test_a_restart_of_redis_is_waited_out(stack: EmbeddedClient) -> None:
    async def main() -> None:
        async with connected(stack) as client:
            waiting = await client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
            await until(lambda: is_status(waiting.status(), "waiting"))
            seen = asyncio.create_task(collect(waiting.log()))
            result = asyncio.create_task(waiting.result())
            streams = await client.streams()
            await until(lambda: streams.followed == 2)
            with stack.redis.pipeline(transaction=False) as pipe:
                pipe.set("now", "1", ex=60)  # a connection waits for what it wrote itself, and so for all before
                pipe.waitaof(1, 0, 5000)
                pipe.execute()

            killed = server_of(stack)
            os.kill(killed, signal.SIGKILL)
            await until(lambda: signalled(waiting.signal("gate", "after it")))

            assert server_of(stack) != killed
            assert (await result).outputs == {"gate": "after it"}
            assert await seen == [event.seq for event in stack.run(waiting.run_id).log()]

    async def signalled(signal_: Awaitable[str]) -> bool:
        return await signal_ in ("taken", "kept")

    run(main)


async def collect(events: AsyncIterator[Any]) -> list[int]:
    return [event.seq async for event in events]


def readers_of(stack: EmbeddedClient) -> int:
    """The connections that read events for coroutines."""
    return [each["name"] for each in stack.redis.client_list()].count("cantata-gateway")


def server_of(stack: EmbeddedClient) -> int:
    return int(stack.redis.info()["process_id"])


def test_an_event_loop_that_ends_closes_its_connection_and_the_next_has_one_of_its_own(stack: EmbeddedClient) -> None:
    client = AsyncClient.of(lambda: stack)

    async def main() -> None:
        chain = await client.submit_chain({"entry_node": "count", "nodes": [COUNT]}, initial_input={"text": "a"})
        assert (await chain.result(PATIENCE_S)).outputs == {"count": 1}
        assert readers_of(stack) in (1, 2), "a second one waits for runs without events in the last two seconds"

    for _ in range(3):
        asyncio.run(main())

    assert wait_until(lambda: readers_of(stack) == 0, "the end of the connections")
    run(client.close)
    assert stack.redis.ping(), "it is not closed with it"


def test_a_client_that_is_closed_ends_who_waits(stack: EmbeddedClient) -> None:
    async def main() -> None:
        client = await AsyncClient.of(stack).connect()
        waiting = await client.submit_chain({"entry_node": "gate", "nodes": [GATE]})
        result = asyncio.create_task(waiting.result())
        streams = await client.streams()
        await until(lambda: streams.followed == 1)

        await client.close()

        with pytest.raises(StreamsEnded):
            await result
        with pytest.raises(RuntimeError, match="after shutdown"):
            await waiting.result()
        stack.run(waiting.run_id).cancel()

    run(main)


def test_a_client_that_was_never_used_connects_to_nothing() -> None:
    async def main() -> None:
        await AsyncClient("redis://127.0.0.1:1/0").close()

    run(main)


def test_any_function_runs_with_the_client_in_the_context_of_its_caller(stack: EmbeddedClient) -> None:
    variable = contextvars.ContextVar("variable", default="")

    async def main() -> None:
        async with connected(stack) as client:
            variable.set("the caller's")
            thread, value, found = await client.call(
                lambda blocking, session: (
                    threading.current_thread(),
                    variable.get(),
                    blocking.sessions.waiting(session),
                ),
                "none",
            )
            assert (value, list(found)) == ("the caller's", [])
            assert thread is not threading.current_thread()

    run(main)


def test_a_batch_is_iterated_by_a_coroutine_and_can_be_left(stack: EmbeddedClient) -> None:
    nodes = [{"node_id": "count", "kind": "tool", "name": "count", "input_map": {"text": "input.text"}}]
    definitions = stack.definitions.model_copy(
        update={"chains": {"counting": Chain.model_validate({"nodes": nodes, "entry_node": "count"})}}
    )
    rows = [{"text": "word " * number} for number in range(12)]

    async def main() -> tuple[list[JsonValue], list[JsonValue]]:
        async with asyncio.timeout(PATIENCE_S), AsyncClient(stack.redis_url, config=definitions) as client:
            first = []
            async with aclosing(
                client.batch(rows, chain="counting", name="left", ordered=True, concurrency=2)
            ) as found:
                async for row in found:
                    first.append(row.output)
                    if len(first) == 5:
                        break
            return first, [
                row.output
                async for row in client.batch(rows, chain="counting", name="left", ordered=True, concurrency=2)
            ]

    first, rest = run(main)

    assert first == [*range(5)]
    assert rest == [*range(12 - len(rest), 12)], (
        "what the loop may not have stored comes again, and nothing is left out"
    )
    assert len(rest) >= 7
