"""PromptChain in Python: the documented snippets run, by workers, through kills, in scripts, notebooks and event loops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cantata import AgenticStepProcessor, Client, PromptChain, RunError
from cantata.client.client import EmbeddedClient
from cantata.testing import ScriptedModels
from tests.integration.fleet import chain_steps as steps
from tests.integration.fleet.conftest import Journal
from tests.waiting import until

GPT = "openai/gpt-4o-mini"
TOP = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def place(client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chains of these tests run on the stack of this folder's tests."""
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    models.script([])


def script(models: ScriptedModels, **replies: str) -> None:
    """What the model says to a prompt that begins with a word."""
    models.script([{"match": f"(?s)^{word}\\b", "reply": reply} for word, reply in replies.items()])


# The documented snippets. Only the import line is another.


def test_agents_as_the_page_of_agentchain_makes_them(models: ScriptedModels) -> None:
    script(models, Solve="4", Write="a poem", Retrieve="a fact")
    # --- Example Agent Setup (using placeholder PromptChains) ---
    math_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Solve: {input}"])
    creative_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Write about: {input}"])
    rag_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Retrieve info: {input}"])

    agent_dict = {
        "math_agent": math_agent,
        "creative_agent": creative_agent,
        "rag_agent": rag_agent
    }  # fmt: skip

    assert [agent.process_prompt("2 + 2") for agent in agent_dict.values()] == ["4", "a poem", "a fact"]
    assert models.journal()[-1]["text"] == "Retrieve info:\n\n2 + 2"


SNIPPET = """
from cantata import PromptChain

models = [
    "openai/gpt-4",                          # Simple string format
    {"name": "anthropic/claude-3-opus-20240229", "params": {"max_tokens": 1000}}  # Dict with params
]

processed_result = "good"

def analyze_sentiment(text: str) -> str:
    # Custom processing logic
    return processed_result

chain = PromptChain(
    models=["openai/gpt-4"],
    instructions=["Extract key points: {input}", analyze_sentiment, "Summarize: {input}"]
)

if __name__ == "__main__":
    print(chain.process_prompt("a text"))
    PromptChain(models=models, instructions=["Extract: {input}", analyze_sentiment, "Summarize: {input}"])
"""


def test_the_snippet_with_a_function_between_prompts_is_a_script_that_runs(
    models: ScriptedModels, tmp_path: Path
) -> None:
    script(models, Extract="points", Summarize="a summary")

    done = run_script(tmp_path, SNIPPET)

    assert (done.stdout, done.stderr, done.returncode) == ("a summary\n", "", 0)
    assert [line["text"] for line in models.journal()[-2:]] == ["Extract key points:\n\na text", "Summarize:\n\ngood"]


def test_an_agentic_step_uses_the_tools_of_its_chain(models: ScriptedModels) -> None:
    models.script(
        [
            {"after_tools": 0, "tool_calls": [{"name": "look_up", "arguments": {"word": "gold"}}]},
            {"after_tools": 1, "reply": "it shines"},
        ]
    )
    chain = PromptChain(models=[], instructions=[AgenticStepProcessor(objective="Explain the word", model_name=GPT)])
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    chain.add_tools(
        [{"type": "function", "function": {"name": "look_up", "description": "Looks up", "parameters": parameters}}]
    )
    chain.register_tool_function(steps.look_up)

    assert chain.process_prompt("gold") == "it shines"
    body: Any = models.journal()[-1]["body"]
    assert body["messages"][-1]["content"] == "gold means something"
    assert body["tools"][0]["function"] == {"name": "look_up", "description": "Looks up", "parameters": parameters}


# What a chain gives


def test_functions_alone_need_no_model() -> None:
    assert PromptChain([], [steps.shout, steps.whisper]).process_prompt("Ab") == "ab"
    assert PromptChain([], [steps.shout, steps.constant]).process_prompt("Ab") == "nothing of it"


def test_stored_steps_are_there_after_the_run(models: ScriptedModels) -> None:
    script(models, Say="hello")
    chain = PromptChain([{"name": GPT, "params": {"temperature": 0}}], ["Say {input}", steps.shout], store_steps=True)

    assert chain.process_prompt("hi") == "HELLO"
    assert chain.step_outputs == {
        "step_0": {"type": "initial", "output": "hi"},
        "step_1": {"type": "model", "output": "hello", "model_params": {"temperature": 0}},
        "step_2": {"type": "function", "output": "HELLO"},
    }
    assert chain.get_step_output(2) == {"type": "function", "output": "HELLO"}
    with pytest.raises(ValueError, match="there is no step_3: step_0, step_1, step_2"):
        chain.get_step_output(3)


def test_the_full_history_is_a_list_of_all_steps(models: ScriptedModels) -> None:
    script(models, First="one", Second="two")

    history = PromptChain([GPT], ["First {input}", steps.shout, "Second {input}"], full_history=True).process_prompt(
        "hi"
    )

    assert [(entry["step"], entry["type"], entry["output"]) for entry in history] == [
        (0, "initial", "hi"),
        (1, "model", "one"),
        (2, "function", "ONE"),
        (3, "model", "two"),
    ]
    assert history[2]["input"] == "Function: shout"
    body: Any = models.journal()[-1]["body"]
    assert [message["content"] for message in body["messages"]] == ["First\n\nhi", "one", "Second\n\nONE"], (
        "it sees its earlier turns"
    )


def test_chainbreakers_are_functions_of_two_or_three_arguments(models: ScriptedModels) -> None:
    script(models, Go="enough", On="more")
    two = PromptChain([GPT], ["Go {input}", "On {input}"], chainbreakers=[steps.stop_early])
    three = PromptChain(
        [GPT],
        ["On {input}", steps.shout, "Go {input}"],
        chainbreakers=[steps.stop_early, steps.replace],
        store_steps=True,
    )

    assert two.process_prompt("hi") == "enough"
    assert three.process_prompt("hi") == "2: MORE!"
    assert three.get_step_output(2)["output"] == "2: MORE!"


def test_a_chain_is_an_instruction_of_another(models: ScriptedModels) -> None:
    script(models, Inner="inside", Outer="outside")
    inner = PromptChain([GPT], ["Inner {input}", steps.shout])

    assert PromptChain([GPT], [inner, "Outer {input}"]).process_prompt("hi") == "outside"
    assert models.journal()[-1]["text"] == "Outer\n\nINSIDE"


def test_only_the_tools_of_an_instruction_are_shown(models: ScriptedModels) -> None:
    chain = PromptChain([GPT], [("a {input}", []), ("b {input}", ["look_up"]), "c {input}"])
    chain.register_tool_function(steps.look_up)
    chain.register_tool_function(steps.shout)

    chain.process_prompt("hi")

    bodies: list[Any] = [line["body"] for line in models.journal()[-3:]]
    shown = [[tool["function"]["name"] for tool in body.get("tools", [])] for body in bodies]
    assert shown == [[], ["look_up"], ["look_up", "shout"]]


def test_a_verbose_chain_logs_what_happens_and_every_chain_what_is_odd(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        PromptChain([GPT], ["no gap", steps.shout], verbose=True).process_prompt("hi")

    lines = [record.getMessage() for record in caplog.records if record.name == "cantata.frontends.promptchain"]
    assert any(line.endswith("chain/@2 done") for line in lines)
    assert [record.levelname for record in caplog.records if "{input}" in record.getMessage()] == ["WARNING"]


# What goes wrong


def test_a_function_that_raises_ends_the_chain_with_its_error(models: ScriptedModels) -> None:
    chain = PromptChain([GPT], ["Read {input}", steps.fail, "Never {input}"])

    with pytest.raises(RunError, match=r"fail raised ValueError: cannot read 'echo: Read\\n\\nit'") as caught:
        chain.process_prompt("it")

    assert (caught.value.status, caught.value.code) == ("failed", "tool_error")
    assert chain.last_result is not None
    assert chain.last_result.run_id == caught.value.run_id
    assert not [line for line in models.journal() if str(line["text"]).startswith("Never")]


def test_a_run_that_takes_too_long_is_an_error(journal: Journal) -> None:
    with pytest.raises(RunError) as caught:
        PromptChain([], [steps.slow], timeout_s=0.5).process_prompt(str(journal.path))

    assert caught.value.status == "timed_out"


def test_a_step_that_takes_too_long_is_an_error(journal: Journal) -> None:
    with pytest.raises(RunError, match=r"took longer than its 0\.5 s"):
        PromptChain([], [steps.slow], step_timeout_s=0.5).process_prompt(str(journal.path))


# Event loops


def test_a_chain_blocks_in_a_running_loop_or_does_not_as_it_is_asked(models: ScriptedModels) -> None:
    models.script([{"delay_s": 1.0}])
    chain = PromptChain([GPT], ["{input}"])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    async def notebook() -> None:
        nonlocal ticks
        ticking = asyncio.create_task(tick())
        assert chain.process_prompt("a") == "echo: a"  # as in a cell of Jupyter
        assert ticks == 0
        assert await chain.process_prompt_async("b") == "echo: b"
        assert ticks > 2
        ticking.cancel()

    asyncio.run(notebook())


def test_many_chains_wait_at_once(models: ScriptedModels) -> None:
    models.script([{"delay_s": 1.0}])
    chain = PromptChain([GPT], ["{input}"])

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(chain.process_prompt_async(str(number)) for number in range(40)))

    since = time.monotonic()
    assert asyncio.run(all_of_them()) == [f"echo: {number}" for number in range(40)]
    assert time.monotonic() - since < 35, "one after the other they take 40 s"


def test_a_chain_that_nobody_waits_for_any_more_is_cancelled(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"delay_s": 30}])
    chain = PromptChain([GPT], ["{input}"])

    async def hurry() -> None:
        waiting = asyncio.create_task(chain.process_prompt_async("late"))
        await asyncio.to_thread(
            until, lambda: models.journal()[-1:] and models.journal()[-1]["text"] == "late", "the model's turn"
        )
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(hurry())

    until(lambda: client.runs(most=1)[0].status == "cancelled", "the end of the run")


# Kills


@pytest.fixture
def victim(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedClient]:
    """A stack that a test may hurt."""
    with Client.embedded(tmp_path_factory.mktemp("victim"), tools=1) as client:
        monkeypatch.setenv("REDIS_URL", client.redis_url)
        yield client


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_a_chain_answers_though_its_workers_are_killed_in_the_middle(
    victim: EmbeddedClient, models: ScriptedModels, journal: Journal
) -> None:
    models.script([{"match": "^Slowly", "times": 1, "delay_s": 30}, {"match": "^Slowly", "reply": "at last"}])
    chain = PromptChain([GPT], [steps.slow, "Slowly {input}"])

    def kill(name: str) -> None:
        os.kill(next(each.pid for each in victim.stack.processes() if each.name == name and each.alive), signal.SIGKILL)

    async def ask() -> str:
        asking = asyncio.create_task(chain.process_prompt_async(str(journal.path)))
        await asyncio.to_thread(until, lambda: journal.of("start"), "the start of the function")
        kill("tools")
        await asyncio.to_thread(
            until, lambda: any(str(each["text"]).startswith("Slowly") for each in models.journal()), "the model's turn"
        )
        kill("agents")
        answer: str = await asking
        return answer

    assert asyncio.run(ask()) == "at last"
    assert (len(journal.of("start")), len(journal.of("finish"))) == (2, 1)


# Scripts with a stack of their own


ALONE = """
import asyncio
from cantata import PromptChain

def shout(text):
    return text.upper()

async def main():
    chains = [PromptChain(["openai/gpt-4o-mini"], ["ask.md", shout]) for _ in range(3)]
    print(await asyncio.gather(*(chain.process_prompt_async(f"n{i}") for i, chain in enumerate(chains))))

if __name__ == "__main__":
    asyncio.run(main())
    print(PromptChain([], [shout]).process_prompt("again"))
"""

UNGUARDED = """
from cantata import PromptChain

def shout(text):
    return text.upper()

print("started")
print(PromptChain([], [shout]).process_prompt("hi"))
"""

ENDLESS = """
from cantata import PromptChain

chain = PromptChain(["openai/gpt-4o-mini"], ["{input}"])

if __name__ == "__main__":
    print(chain.process_prompt("for ever"))
"""


def alone(folder: Path) -> Mapping[str, str]:
    """The environment of a script that has nothing but itself."""
    kept = {
        name: value for name, value in os.environ.items() if name != "REDIS_URL" and not name.startswith("CANTATA_")
    }
    return {**kept, "PYTHONPATH": str(TOP)}


def run_script(
    folder: Path, text: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def processes_in(folder: Path) -> str:
    return subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False).stdout


@pytest.mark.slow("a stack of its own starts and ends")
def test_a_script_alone_has_one_stack_that_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "ask.md").write_text("<{input}>")

    done = run_script(tmp_path, ALONE, alone(tmp_path))

    assert done.stdout == "['ECHO: <N0>', 'ECHO: <N1>', 'ECHO: <N2>']\nAGAIN\n"
    (note,) = done.stderr.splitlines()
    assert note.endswith(f"the first answer waits until one has started in {tmp_path / '.cantata'} for this process")
    assert (tmp_path / ".cantata" / "logs" / "stack.log").read_text().count('"stack_ready"') == 1
    assert processes_in(tmp_path) == ""


def test_a_script_without_a_guard_is_told_so_and_does_not_start_itself_again(tmp_path: Path) -> None:
    done = run_script(tmp_path, UNGUARDED, alone(tmp_path))

    assert (done.stdout, done.returncode) == ("started\n", 1)
    assert 'def main():\n    ...  # the code that runs chains\nif __name__ == "__main__":\n    main()\n' in done.stderr


@pytest.mark.slow("a stack of its own starts and ends")
def test_ctrl_c_cancels_the_run_and_ends_the_stack(models: ScriptedModels, tmp_path: Path) -> None:
    models.script([{"match": "for ever", "delay_s": 60}])
    (tmp_path / "script.py").write_text(ENDLESS)
    command = [sys.executable, "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=alone(tmp_path), stderr=subprocess.PIPE, text=True) as running:
        until(lambda: "for ever" in str(models.journal()[-1:]), "the model's turn", 100.0)

        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)

    assert said.rstrip().endswith("KeyboardInterrupt")
    until(lambda: models.journal()[-1]["client_left"], "the end of the request")
    assert processes_in(tmp_path) == ""
