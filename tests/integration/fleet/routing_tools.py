"""Functions that choose agents, as a user would write them."""

from __future__ import annotations

import json
import time
from typing import Any

from cantata import ToolContext


def first_word(text: str) -> str | None:
    return text.split()[0] if text.split()[0] in ("math", "poet", "clerk") else None


def long(text: str) -> bool:
    return len(text) > 100


def broken(text: str) -> str:
    raise RuntimeError("out of order")


def route(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> dict[str, str]:
    return {"chosen_agent": user_input.split()[0]}


async def route_async(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> str:
    return json.dumps({"chosen_agent": user_input.split()[0]})


def route_as_text(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> str:
    return f'Well: {{"chosen_agent": "{user_input.split()[0]}"}}'


def tell(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> dict[str, str]:
    told = {"history": history, "descriptions": agent_descriptions}
    return {"chosen_agent": "math", "refined_query": json.dumps(told)}


def route_by_memory(
    user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str], context: ToolContext
) -> dict[str, str]:
    context.memory.store_memory("asked", user_input, context.run_id)
    return {"chosen_agent": "poet"}


def rule_by_memory(text: str, context: ToolContext) -> bool:
    context.memory.store_memory("rule asked", text, context.run_id)
    return False


def broken_router(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> str:
    raise RuntimeError("out of order")


def hang_router(user_input: str, history: list[dict[str, Any]], agent_descriptions: dict[str, str]) -> str:
    time.sleep(60)
    return ""
