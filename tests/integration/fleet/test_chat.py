"""`submit chat` on a terminal: real keys, a real stack, a scripted model."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.flows.wire import RunResult
from cantata.testing import ScriptedModels
from tests.integration.fleet.chat_terminal import CTRL_C, PROMPT, Terminal, settled, submit
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20

COUNT = "one two three four five six seven eight nine ten"
SLOW = {"match": "count", "reply": COUNT, "chunk_delay_s": 0.3}
LOOK_UP = {"name": "price", "arguments": {"flower": "rose"}}
QUICK = {"match": "count", "reply": COUNT}


@pytest.fixture
def folder(tmp_path: Path, models: ScriptedModels) -> Iterator[Path]:
    models.script([])
    yield settled(tmp_path)
    models.script([])


@pytest.fixture
def url(client: EmbeddedClient) -> str:
    return client.redis_url


# On a terminal


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_an_answer_appears_while_it_comes(folder: Path, url: str, models: ScriptedModels) -> None:
    models.script([{**SLOW, "chunk_delay_s": 0.9}])
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)
        chat.press("count")

        chat.until("poet: one two")

        assert "ten" not in chat.shown
        chat.until("three")
        chat.until("ten")
        chat.until(PROMPT)
        assert chat.shown.count("one two") == 1


def test_the_session_is_named_at_the_start_and_at_the_end(folder: Path, url: str) -> None:
    with Terminal(folder, url) as chat:
        session = chat.until(PROMPT).partition("session ")[2].partition(" ")[0]

        assert f"continue with: submit chat --session {session}" in chat.end()


@pytest.mark.parametrize("word", ["exit", "/exit"])
def test_a_word_ends_it(folder: Path, url: str, word: str) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)

        assert "continue with" in chat.end(word)


def test_a_line_may_be_for_one_agent(folder: Path, url: str, models: ScriptedModels) -> None:
    models.script(
        [
            {
                "match": "rose",
                "after_tools": 0,
                "reply": "Let me look.",
                "tool_calls": [{"name": "price", "arguments": {"flower": "rose"}}],
            },
            {"match": "rose", "after_tools": 1, "reply": "It costs 3.50."},
        ]
    )
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)

        told = chat.ask("@seller: what does a rose cost?")

        lines = [line.strip() for line in told.splitlines() if line.strip()]
        assert lines[:4] == ["seller: Let me look.", "⚙ price(flower=rose)", "⚙ price → 3.5", "It costs 3.50."]


def test_history_may_be_sent_to_an_agent(folder: Path, url: str, models: ScriptedModels) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)
        chat.ask("my name is Ada")

        chat.ask("@history @seller: who am I?")

    assert "my name is Ada" in str(models.journal()[-1]["text"])


def test_an_agent_that_is_not_there_is_told_with_those_that_are(folder: Path, url: str) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)

        assert "Agent 'nobody' not recognized. The agents here are: poet, seller" in chat.ask("@nobody: hello")
        assert "poet: echo: hello" in chat.ask("hello")


def test_an_error_is_a_sentence_in_red_and_the_chat_goes_on(folder: Path, url: str, models: ScriptedModels) -> None:
    models.script([{"match": "broken", "status": 400, "reply": "no such thing"}])
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)

        told = chat.ask("broken")

        assert "no such thing" in told
        assert "\x1b[31m" in chat.raw
        assert "poet: echo: hello" in chat.ask("hello")


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_ctrl_c_cancels_the_answer_and_not_the_chat(folder: Path, url: str, models: ScriptedModels) -> None:
    models.script([{**SLOW, "chunk_delay_s": 5.0}])
    with Terminal(folder, url, "--session", folder.name) as chat:
        chat.until(PROMPT)
        chat.press("count")
        chat.until("poet: one")

        chat.press(CTRL_C, "")

        chat.until("cancelled")
        chat.until(PROMPT)
        assert "poet: echo: hello" in chat.ask("hello")


def test_ctrl_c_at_the_prompt_is_a_hint(folder: Path, url: str) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)

        chat.press(CTRL_C, "")

        chat.until("Ctrl-D or /exit ends the chat")
        chat.until(PROMPT)


def test_commands_answer(folder: Path, url: str) -> None:
    with Terminal(folder, url, "--session", f"{folder.name} one", "--label", f"tenant={folder.name}") as chat:
        chat.until(PROMPT)

        assert "/memory" in chat.ask("/help")
        assert "there is no command '/nonsense'" in chat.ask("/nonsense")
        assert "the session has no entries yet" in chat.ask("/history")
        chat.ask("hello")
        assert "you: hello" in chat.ask("/history")
        assert f"session {folder.name} one: 2 entries" in chat.ask("/session")
        assert f"session {folder.name} two: 0 entries" in chat.ask(f"/session {folder.name} two")
        chat.ask(f"/session {folder.name} one")
        assert f"deleted 2 entries of session {folder.name} one" in chat.ask("/clear")


def test_preferences_are_remembered(folder: Path, url: str) -> None:
    tenant = ("--label", f"tenant={folder.name}")
    with Terminal(folder, url, *tenant) as chat:
        chat.until(PROMPT)
        assert "no preferences yet" in chat.ask("/memory")
        assert "city = New York" in chat.ask("/memory set city New York")
        assert "there is no preference 'town'" in chat.ask("/memory get town")

    with Terminal(folder, url, *tenant) as chat:
        chat.until(PROMPT)
        assert "New York" in chat.ask("/memory get city")
        assert "deleted 1 value" in chat.ask("/memory clear")


def test_several_lines_are_pasted_as_one_text(folder: Path, url: str, models: ScriptedModels) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)
        chat.press("\x1b[200~first\nsecond\x1b[201~")

        chat.until("echo: first")

        assert models.journal()[-1]["text"] == "first\nsecond"


def test_lines_are_found_again_in_a_file_that_only_the_owner_may_read(folder: Path, url: str) -> None:
    with Terminal(folder, url) as chat:
        chat.until(PROMPT)
        chat.ask("remember this")

    with Terminal(folder, url) as chat:
        chat.until(PROMPT)
        chat.press("\x1b[A")  # the key Up

        chat.until("echo: remember this")
    assert stat.S_IMODE((folder / "state" / "cantata" / "chat_lines").stat().st_mode) == 0o600


def test_a_broadcast_is_told_one_after_the_other(folder: Path, url: str, models: ScriptedModels) -> None:
    models.script([{**SLOW, "chunk_delay_s": 0.05}])
    with Terminal(folder, url, "--team", "both") as chat:
        chat.until(PROMPT)

        told = chat.ask("count")

        assert told.count(COUNT) == 2
        assert {"poet", "seller"} == {line.partition(":")[0].strip() for line in told.splitlines() if COUNT in line}


def test_who_was_chosen_is_told(folder: Path, url: str) -> None:
    with Terminal(folder, url, "--team", "desk") as chat:
        chat.until(PROMPT)

        told = chat.ask("a rose, please")

        assert "→ seller (a rule)" in told
        assert "seller: echo: a rose, please" in told


def test_the_decisions_of_a_router_are_told(folder: Path, url: str, models: ScriptedModels) -> None:
    decision = json.dumps({"chosen_agent": "seller", "refined_query": "roses for Ada"})
    models.script(
        [
            {"model": "gpt-4o$", "reply": decision},
            {"match": "^roses", "times": 1, "reply": "[REROUTE] go on"},
            {"match": "^roses", "reply": "[FINAL] Here they are."},
        ]
    )
    with Terminal(folder, url, "--team", "led") as chat:
        chat.until(PROMPT)

        told = [line.strip() for line in chat.ask("flowers").splitlines()]

        assert told[0] == "→ seller (the router, asked: roses for Ada)"
        assert "↪ seller hands over: go on" in told
        assert "seller: Here they are." in told


BESIDE = """
import asyncio

from cantata.surfaces.chat import ChatBackend, run_async
from cantata.client.client import Client


async def main() -> None:
    with Client() as client:
        await run_async(ChatBackend(client))
    print("the end")


asyncio.run(main())
"""


@pytest.mark.thorough("the same chat, beside an event loop")
@pytest.mark.slow("a program of its own starts, and a model takes its time")
def test_beside_coroutines_it_is_the_same(folder: Path, url: str, models: ScriptedModels) -> None:
    (folder / "beside.py").write_text(BESIDE)
    models.script([{**SLOW, "chunk_delay_s": 3.0}])
    with Terminal(folder, url, program="beside") as chat:
        chat.until(PROMPT)
        assert "poet: echo: hello" in chat.ask("hello")
        chat.press("count")
        chat.until("poet: one")

        chat.press(CTRL_C, "")

        chat.until("cancelled")
        chat.until(PROMPT)
        assert "the end" in chat.end()


# Gone on with


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_chat_that_was_killed_goes_on_with_the_answer_under_way(
    folder: Path, url: str, models: ScriptedModels
) -> None:
    models.script(
        [{"match": "count", "reply": "one two", "chunk_delay_s": 2.5}]
    )  # with its end some 10 s, in which the second chat begins
    session = ("--session", folder.name)
    with Terminal(folder, url, *session) as chat:
        chat.until(PROMPT)
        chat.press("count")
        chat.until("poet: one")
        chat.kill()

    with Terminal(folder, url, *session) as chat:
        chat.until("under way: count")
        chat.until("poet: one two")
        chat.until(PROMPT)
        assert "poet: echo: hello" in chat.ask("hello")


def test_a_chat_that_was_killed_tells_the_answer_that_came_meanwhile(
    folder: Path, client: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script([{**SLOW, "chunk_delay_s": 0.1}])
    session = ("--session", folder.name)
    with Terminal(folder, client.redis_url, *session) as chat:
        chat.until(PROMPT)
        chat.press("count")
        chat.until("poet: one")
        chat.kill()
    until(lambda: len(client.sessions.history(folder.name)) == 2, "the answer")

    with Terminal(folder, client.redis_url, *session) as chat:
        told = chat.until(PROMPT)

        assert "you: count" in told
        assert f"poet: {COUNT}" in told


@pytest.mark.thorough("two stacks start; on a stack that stays it is the test above")
@pytest.mark.slow("a stack of its own starts and ends")
def test_a_chat_on_a_stack_of_its_own_goes_on_too(folder: Path, models: ScriptedModels) -> None:
    models.script(
        [{**SLOW, "times": 1, "chunk_delay_s": 3.0}, {**QUICK, "delay_s": 5.0}]
    )  # not before the second chat looks
    session = ("--session", "ours")
    with Terminal(folder, None, *session) as chat:
        chat.until(PROMPT)
        chat.ask("hello")
        chat.press("count")
        chat.until("poet: one")
        chat.kill()

    with Terminal(folder, None, *session) as chat:  # at once: the stack of the killed one still ends
        told = chat.until("under way: count")
        assert "poet: echo: hello" in told
        chat.until(COUNT)  # "poet: " before it, if the old attempt was not seen to end
        chat.until(PROMPT)
        assert "continue with: submit chat --session ours" in chat.end()


# What goes wrong


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels) -> Iterator[EmbeddedClient]:
    """A stack that these tests may hurt."""
    with Client.embedded(tmp_path_factory.mktemp("victim"), agents=1, tools=1) as client:
        yield client


def pid_of(client: EmbeddedClient, name: str) -> int:
    return int(until(lambda: next((p.pid for p in client.stack.processes() if p.name == name and p.alive), None), name))


@pytest.mark.thorough("held over WebSocket by gateway/test_chat.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_what_a_killed_worker_said_is_taken_back(folder: Path, victim: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{**SLOW, "times": 1, "chunk_delay_s": 3.0}, QUICK])
    with Terminal(folder, victim.redis_url) as chat:
        chat.until(PROMPT)
        chat.press("count")
        chat.until("poet: one")

        os.kill(pid_of(victim, "agents"), signal.SIGKILL)

        chat.until("⟲ discarded: its worker is gone")
        chat.until(f"poet: {COUNT}")
        chat.until(PROMPT)


@pytest.mark.thorough("held over WebSocket by gateway/test_chat.py")
@pytest.mark.slow("a Redis is ended and started again")
def test_a_turn_goes_on_when_redis_is_started_again(
    folder: Path, victim: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script([{**SLOW, "chunk_delay_s": 0.7}])
    with Terminal(folder, victim.redis_url) as chat:
        chat.until(PROMPT)
        chat.press("count")
        chat.until("poet: one two")

        os.kill(pid_of(victim, "valkey"), signal.SIGKILL)

        chat.until("ten", 60.0)
        chat.until(PROMPT)
        assert "poet: echo: hello" in chat.ask("hello")


# Without a terminal


def test_each_line_of_standard_input_is_a_turn(folder: Path, url: str) -> None:
    lines = "first\n\n@seller: second\n/memory get town\nexit\nthird\n"

    done = submit(folder, url, "chat", "--label", f"tenant={folder.name}", lines=lines)

    assert done.stdout.splitlines() == ["echo: first", "echo: second"]
    assert "there is no preference 'town'" in done.stderr
    assert done.returncode == 1


def test_with_json_each_turn_is_a_result_in_a_line(folder: Path, url: str) -> None:
    done = submit(folder, url, "chat", "--json", lines="first\n@nobody: second\n")

    results = [RunResult.model_validate(json.loads(line)) for line in done.stdout.splitlines()]
    assert [result.output for result in results] == ["echo: first", None]
    assert results[1].error is not None
    assert results[1].error.code == "unknown_agent"
    assert done.returncode == 1


def test_a_fault_of_the_command_line_is_told_at_once(folder: Path, url: str) -> None:
    assert submit(folder, url, "chat", "--team", "bothh").returncode == 2
    assert submit(folder, url, "chat", "--session", "a\nb").returncode == 2
