"""LiteLLM alone, in a process of its own: what an agent's model calls take without anything around them.

A line on standard input is one measurement, `at_once TEXT` and so on; the answer is a line with a number.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from cantata.values import JsonValue
from cantata_workers.models.llm import load
from tests.bench.bench_tools import count

MODEL = "openai/scripted"
AT_ONCE = 200
TOOL: Mapping[str, JsonValue] = {
    "name": "count",
    "description": "Count on by one.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}


async def at_once(text: str) -> float:
    """The seconds that many calls take at once."""
    since = time.perf_counter()
    await asyncio.gather(*(_ask([_user(text)]) for _ in range(AT_ONCE)))
    return time.perf_counter() - since


async def first_text(text: str) -> float:
    """When the first text of a stream was there, in seconds since the epoch."""
    stream = await _ask([_user(text)], stream=True)
    times = [time.time() async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    return times[0]


async def loop(text: str) -> float:
    """The seconds that a model takes with its tool until it answers."""
    messages: list[Any] = [_user(text)]
    since = time.perf_counter()
    while True:
        reply = await _ask(messages, tools=[{"type": "function", "function": TOOL}])
        message = reply.choices[0].message
        if not message.tool_calls:
            return time.perf_counter() - since
        messages.append(message.model_dump())
        for call in message.tool_calls:
            answer = count(**json.loads(call.function.arguments))
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": json.dumps(answer)}
            )


async def turns(text: str) -> float:
    """The seconds that so many turns take at once: `100 3,1` is a hundred, each three calls and then one; `stream` behind it streams."""
    number, layers, *how = text.split()
    since = time.perf_counter()
    await asyncio.gather(
        *(_turn([int(width) for width in layers.split(",")], stream="stream" in how) for _ in range(int(number)))
    )
    return time.perf_counter() - since


async def told(text: str) -> float:
    """The seconds that one call takes that is told a number of messages before its own."""
    since = time.perf_counter()
    await _ask([*(_user(f"text {n}") for n in range(int(text))), _user("hello")])
    return time.perf_counter() - since


async def _turn(layers: list[int], *, stream: bool) -> None:
    for width in layers:
        for reply in await asyncio.gather(*(_ask([_user("hello")], stream=stream) for _ in range(width))):
            if stream:
                async for _ in reply:
                    pass


async def batch(text: str) -> float:
    """The seconds that the rows of a file take, so many at once, each written to a file when it is answered: `200 rows.jsonl out.jsonl`."""
    number, rows, out = text.split()
    since = time.perf_counter()
    with open(rows) as lines, open(out, "w") as results:  # noqa: ASYNC230  # as such loops do

        async def work() -> None:
            for row in map(json.loads, lines):
                reply = await _ask([_user(row["text"])])
                results.write(json.dumps({**row, "output": reply.choices[0].message.content}) + "\n")

        await asyncio.gather(*(work() for _ in range(int(number))))
    return time.perf_counter() - since


async def memory(_: str) -> float:
    """The most bytes this process ever held."""
    return most_bytes("self")


MEASURES: Mapping[str, Callable[[str], Awaitable[float]]] = {
    "at_once": at_once, "first_text": first_text, "loop": loop, "memory": memory, "turns": turns, "told": told, "batch": batch,
}  # fmt: skip


def most_bytes(process: int | str) -> int:
    """The most memory a process ever held. Reads /proc, so Linux only."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _user(text: str) -> Mapping[str, JsonValue]:
    return {"role": "user", "content": text}


async def _ask(messages: list[Any], **more: Any) -> Any:
    return await load().acompletion(model=MODEL, messages=messages, max_retries=0, **more)


async def _serve() -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, _, text = line.strip().partition(" ")
        sys.stdout.write(f"{await MEASURES[what](text)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve())
