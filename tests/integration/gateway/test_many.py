"""Many sessions at once on one gateway."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.examples import thorough
from tests.integration.gateway.conftest import Chat, Gateway

pytestmark = pytest.mark.timeout(400)  # 25 s on two busy cores, and a stack to start

TURNS = 2
MAX_MB = 0.2  # a session
MEASURABLE = 100  # sessions; what fewer take is less than the buffers and threads of the process


async def talk(chat: Chat, session: str) -> None:
    """Ask several things at once, and hold each answer to what was asked."""
    asked = [f"{session} asks {number}" for number in range(TURNS)]
    for text in asked:
        await chat.say(text, id=text)
    texts: dict[str, str] = {}
    tokens: dict[str, str] = {}
    seqs: dict[str, int] = {}
    results = 0
    while results < TURNS:
        frame = await chat.frame()
        run_id = frame["run_id"]
        if frame["type"] == "accepted":
            texts[run_id] = frame["id"]
            continue
        assert frame["seq"] > seqs.get(run_id, 0)
        seqs[run_id] = frame["seq"]
        if frame["type"] == "token":
            tokens[run_id] = tokens.get(run_id, "") + frame["text"]
        if frame["type"] == "void":
            tokens[run_id] = ""
        if frame["type"] == "result":
            results += 1
            assert frame["output"] == f"echo: {texts[run_id]}" == tokens[run_id]
    assert sorted(texts.values()) == asked


@pytest.mark.slow("it is about many at once")
def test_many_sessions_at_once_get_each_their_own_answers(gateway: Gateway) -> None:
    sessions = thorough(300, plain=30)

    async def main() -> tuple[float, float, float]:
        before = gateway.memory_mb()
        async with AsyncExitStack() as stack:
            chats = {f"many-{i}": await stack.enter_async_context(gateway.chat(f"many-{i}")) for i in range(sessions)}
            idle = gateway.memory_mb()
            await asyncio.gather(*(talk(chat, session) for session, chat in chats.items()))
            return before, idle, gateway.memory_mb()

    before, idle, busy = asyncio.run(main())

    print(f"{before:.0f} MB without sessions, {idle:.0f} MB with {sessions} idle ones, {busy:.0f} MB after their turns")  # noqa: T201
    if sessions >= MEASURABLE:
        assert busy - before < MAX_MB * sessions
