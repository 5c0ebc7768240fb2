"""LiteLLM alone, in a process of its own: what the model calls of an agent cost without anything around them. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.bench_tools import noop
from workers.llm.library import ENVIRONMENT

os.environ.update(ENVIRONMENT)

import litellm  # noqa: E402  # it reads them when it is imported


async def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """All that is asked for, after one call that does not count."""
    await _ask("warm")
    model, tool, repeats = asked["model"], asked["tool"], asked["repeats"]
    at_once = []
    for _ in range(repeats):
        since = time.perf_counter()
        await asyncio.gather(*(_ask(asked["slow"], model) for _ in range(asked["at_once"])))
        at_once.append(time.perf_counter() - since)
    return {
        "at_once_s": at_once,
        "resident_bytes": resident_bytes("self"),
        "first_text_at": [await _first_text_at(asked["streamed"], model) for _ in range(asked["streams"])],
        "round_ms": await _round_ms(asked["rounds_text"], model, tool, asked["rounds"], asked["loops"]),
    }


async def _ask(text: str, model: str = "openai/bare") -> Any:
    return await litellm.acompletion(model=model, messages=[{"role": "user", "content": text}], max_retries=0)


async def _first_text_at(text: str, model: str) -> float:
    stream = await litellm.acompletion(model=model, messages=[{"role": "user", "content": text}], stream=True, max_retries=0)
    first = 0.0
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content and not first:
            first = time.time()
    return first


async def _round_ms(text: str, model: str, tool: Mapping[str, Any], rounds: int, loops: int) -> list[float]:
    """A round of the model and its tool, without the answer that ends the loop."""
    return [(await _loop_s(text, model, tool) - await _loop_s("no tools", model, tool)) / rounds * 1000 for _ in range(loops)]


async def _loop_s(text: str, model: str, tool: Mapping[str, Any]) -> float:
    messages: list[Any] = [{"role": "user", "content": text}]
    since = time.perf_counter()
    while True:
        reply = await litellm.acompletion(model=model, messages=messages, tools=[{"type": "function", "function": tool}], max_retries=0)
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return time.perf_counter() - since
        for call in message.tool_calls:
            answer = noop(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": json.dumps(answer)})


def resident_bytes(process: str) -> int:
    """The most memory a process ever held. Linux only."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(measure(json.loads(sys.argv[1])))))
