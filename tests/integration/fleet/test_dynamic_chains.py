"""Chain builders: the documented examples end, dependants get outputs, failures stay where they belong, any process can go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from cantata import ChainBuilder, ChainRun, Client, RunError, UnavailableError
from cantata.client.client import EmbeddedClient
from cantata.testing import ScriptedModels
from cantata.values import JsonValue
from cantata_frontends.chainbuilder.plan import BuilderPlan, Mode
from tests.integration.fleet import chain_steps
from tests.waiting import until

GPT = "openai/gpt-4o-mini"
OPEN = """
import sys
from cantata import ChainBuilder
builder = ChainBuilder.open(sys.argv[1])
print(builder.wait_group("analysis"), builder.get_group_status("analysis"), builder.execute_chain("after", "then"))
"""


@pytest.fixture(autouse=True)
def asked(client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The builders of these tests use the stack of this folder's tests; the prompts that came since the test began."""
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    models.script([])
    before = len(models.journal())
    return lambda: [str(line["text"]) for line in models.journal()[before:]]


def builder(**more: Any) -> ChainBuilder:
    return ChainBuilder(GPT, **more)


def answer(models: ScriptedModels, **replies: str | dict[str, Any]) -> None:
    """What the model says to a prompt that begins with a word."""
    rules = [
        {"match": f"(?s)^{word}\\b", **(said if isinstance(said, dict) else {"reply": said})}
        for word, said in replies.items()
    ]
    models.script([*rules, {"reply": "said"}])


# --- as documented ----------------------------------------------------------------------------------------------------


def test_a_group_of_mixed_modes_ends(models: ScriptedModels, asked: Callable[[], list[str]]) -> None:
    answer(models, Base="done")
    made = ChainBuilder({"name": GPT, "params": {"temperature": 0.7}}, base_instruction="Base analysis: {input}")
    made.create_chain("cleanup", ["Clean and normalize: {input}"], execution_mode="independent", group="analysis")
    made.create_chain("topic_analysis", ["Identify topics in: {input}"], execution_mode="parallel", group="analysis")
    made.create_chain("tone_analysis", ["Analyze tone in: {input}"], execution_mode="parallel", group="analysis")
    made.create_chain(
        "final_summary",
        ["Synthesize findings: {input}"],
        execution_mode="serial",
        dependencies=["cleanup"],
        group="analysis",
    )

    results = made.execute_group("analysis", "Input text")

    assert results == dict.fromkeys(["cleanup", "topic_analysis", "tone_analysis", "final_summary"], "done")
    assert made.get_group_status("analysis") == dict.fromkeys(results, "completed")
    prompts = asked()
    assert "Base analysis: Clean and normalize:\n\nInput text" in prompts
    assert prompts.index("Base analysis: Clean and normalize:\n\nInput text") < prompts.index(
        "Base analysis: Synthesize findings:\n\nInput text"
    )


def test_a_document_pipeline_ends(models: ScriptedModels, asked: Callable[[], list[str]]) -> None:
    made = builder()
    stages = [
        ("validate", "independent", []),
        ("extract", "parallel", []),
        ("analyze", "parallel", []),
        ("summarize", "serial", ["analyze"]),
        ("format", "serial", ["summarize"]),
    ]
    for name, mode, needs in stages:
        made.create_chain(name, [f"{name.capitalize()}: {{input}}"], mode, "document", needs)  # type: ignore[arg-type]  # as documented

    results = made.execute_group("document", "a text")

    assert list(results) == [name for name, _, _ in stages]
    order = [prompt.partition(":")[0] for prompt in asked()]
    assert order.index("Analyze") < order.index("Summarize") < order.index("Format")


def test_steps_are_inserted_and_a_merge_needs_its_sources(
    models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    answer(models, Initial="first", Additional="second", First="one", Second="two")
    made = builder()
    made.create_chain("process", ["Initial processing: {input}"], group="dynamic")
    made.insert_chain("process", ["Additional analysis: {input}"], position=1)
    for chain_id, text in (("analysis_1", "First analysis: {input}"), ("analysis_2", "Second analysis: {input}")):
        made.create_chain(chain_id, [text], execution_mode="independent", group="source")
    made.merge_chains(["analysis_1", "analysis_2"], "combined_analysis", execution_mode="serial", group="merged")

    assert made.execute_chain("process", "Input data") == "second"
    with pytest.raises(
        ValueError, match="Dependency 'analysis_1' must be executed before 'combined_analysis': it is created"
    ):
        made.execute_chain("combined_analysis", "Input")
    made.execute_group("source", "Input")
    assert made.execute_group("merged", "Input") == {"combined_analysis": "two"}

    prompts = asked()
    assert prompts[:2] == ["Initial processing:\n\nInput data", "Additional analysis:\n\nfirst"]
    assert prompts[-2:] == ["First analysis:\n\nInput", "Second analysis:\n\none"]


def test_a_head_lists_tasks_that_become_chains(models: ScriptedModels, asked: Callable[[], list[str]]) -> None:
    template = "Your task: {instruction}\nInput: {input}"
    models.script([
        {"match": "generate", "reply": "1. Is it fast?\n2. Is it safe?"},
        {"match": "fast", "reply": "quite"},
        {"match": "(?s)Synthesize", "reply": "report"},
        {"reply": "very"},
    ])  # fmt: skip
    made = ChainBuilder(GPT, base_instruction=template, technique="head-tail")
    made.create_chain("decomposer", "Analyze this and generate questions.", group="research")

    made.execute_chain("decomposer", "trains")
    tails = made.create_tasks("decomposer")
    made.create_chain("synthesis", "Synthesize {decomposer_1} and {decomposer_2}.", group="report", dependencies=tails)
    for tail in tails:
        made.execute_chain(tail, "trains")
    report = made.execute_chain("synthesis", "trains")

    assert tails == ["decomposer_1", "decomposer_2"]
    assert report == "report"
    assert asked()[1:] == [
        "Your task: Is it fast?\nInput:\n\ntrains",
        "Your task: Is it safe?\nInput:\n\ntrains",
        "Your task: Synthesize quite and very.\nInput:\n\ntrains",
    ]


def test_a_function_of_the_caller_may_run_the_parallel_chains(
    models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    answer(models, Clean="clean", Tell="told")
    made = builder()
    made.create_chain("clean", ["Clean {input}"])
    made.create_chain("a", ["A {clean}"], "parallel", dependencies=["clean"])
    made.create_chain("b", ["B {clean}"], "parallel", dependencies=["clean"])
    made.create_chain("tell", ["Tell {a} and {b}"], dependencies=["a", "b"])
    given: list[list[tuple[str, str]]] = []

    async def executor(chain_inputs: list[tuple[str, str]]) -> dict[str, Any]:
        given.append(chain_inputs)
        first = await asyncio.to_thread(made.execute_chain, *chain_inputs[0])
        return {"a": first, "b": "by hand"}

    results = made.execute_group("default", "it", parallel_executor=executor)

    assert results == {"clean": "clean", "a": "said", "b": "by hand", "tell": "told"}
    assert given == [[("a", "it"), ("b", "it")]]
    assert asked()[1:] == ["A clean", "Tell said and by hand"]
    assert made.get_group_status("default") == dict.fromkeys(results, "completed")


@pytest.mark.parametrize("mode", ["independent", "serial"])
def test_what_needs_a_failed_chain_is_not_handed_to_the_caller(mode: Mode) -> None:
    made = builder()
    made.create_chain("broken", [chain_steps.fail], mode)
    made.create_chain("behind", ["Behind {broken}"], "parallel", dependencies=["broken"])
    made.create_chain("free", [chain_steps.shout], "independent")
    made.create_chain("after", [chain_steps.whisper], "parallel", dependencies=["free"])
    given: list[str] = []

    def executor(chain_inputs: list[tuple[str, str]]) -> dict[str, str]:
        given.extend(chain_id for chain_id, _ in chain_inputs)
        return dict.fromkeys(given, "by hand")

    with nullcontext() if mode == "independent" else pytest.raises(RunError, match="chain 'broken' failed"):
        assert made.execute_group("default", "It", parallel_executor=executor) == {"free": "IT", "after": "by hand"}

    assert given == ["after"]
    assert made.get_group_status("default") == {
        "broken": "failed",
        "behind": "created",
        "free": "completed",
        "after": "completed",
    }


# --- data -------------------------------------------------------------------------------------------------------------


def test_outputs_of_dependencies_fill_every_text_of_a_chain(
    models: ScriptedModels, asked: Callable[[], list[str]]
) -> None:
    answer(models, Facts="F {input}", One="a", Two="2")
    made = builder()
    made.create_chain("facts-1", ["Facts in {input}"], group="base")
    made.create_chain(
        "b",
        ["One of {facts-1}: {input}", chain_steps.shout, "Two of {facts-1} and {b}: {input}"],
        dependencies=["facts-1"],
    )

    made.execute_group("base", "it")
    assert made.execute_group("default", "text") == {"b": "2"}

    assert asked() == ["Facts in\n\nit", "One of F {input}:\n\ntext", "Two of F {input} and {b}:\n\nA"]


def test_in_one_group_too(models: ScriptedModels, asked: Callable[[], list[str]]) -> None:
    answer(models, Facts="F", Views="V", Both="B")
    made = builder()
    made.create_chain("facts", ["Facts: {input}"], "parallel")
    made.create_chain("views", ["Views: {input}"], "parallel")
    made.create_chain(
        "both", ["Both {facts} {views} of {input}", "Again {views}: {input}"], dependencies=["facts", "views"]
    )

    assert made.execute_group("default", "it") == {"facts": "F", "views": "V", "both": "said"}
    assert asked()[2:] == ["Both F V of\n\nit", "Again V:\n\nB"]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_stops_what_needs_it_and_nothing_else(models: ScriptedModels) -> None:
    answer(models, Bad={"status": 400})
    made = builder()
    for chain_id, text, mode, needs in (
        ("bad", "Bad {input}", "parallel", []),
        ("good", "Good {input}", "parallel", []),
        ("needs_both", "Both {input}", "parallel", ["bad", "good"]),
        ("needs_good", "Good {input}", "parallel", ["good"]),
    ):
        made.create_chain(chain_id, [text], mode, dependencies=needs)  # type: ignore[arg-type]  # literals

    with pytest.raises(RunError, match="chain 'bad' failed") as raised:
        made.execute_group("default", "it")

    assert raised.value.status == "failed"
    assert made.get_group_status("default") == {
        "bad": "failed",
        "good": "completed",
        "needs_both": "created",
        "needs_good": "completed",
    }
    assert made.get_chain_output("good") == "said"
    assert made.get_chain_output("bad") is None
    assert "400" in str(made.get_chain_error("bad"))


def test_a_serial_chain_behind_a_failed_one_does_not_run_and_an_independent_failure_is_its_own(
    models: ScriptedModels,
) -> None:
    answer(models, Bad={"status": 400})
    made = builder()
    made.create_chain("alone", ["Bad {input}"], "independent", "g")
    made.create_chain("fine", ["Fine {input}"], "serial", "g")
    made.create_chain("bad", ["Bad {input}"], "serial", "rows")
    made.create_chain("behind", ["Fine {input}"], "serial", "rows")

    assert made.execute_group("g", "it") == {"fine": "said"}
    assert made.get_chain_status("alone") == "failed"
    with pytest.raises(RunError):
        made.execute_chain("alone", "it")
    with pytest.raises(RunError):
        made.execute_group("rows", "it")
    assert made.get_group_status("rows") == {"bad": "failed", "behind": "created"}


def test_what_is_not_known_is_told(models: ScriptedModels) -> None:
    made = builder(name="known")

    assert made.get_chain_output("nobody") is None
    assert made.get_chain_status("nobody") is None
    with pytest.raises(ValueError, match="Chain 'nobody' not found"):
        made.execute_chain("nobody", "it")
    with pytest.raises(ValueError, match="Group 'nobody' not found"):
        made.execute_group("nobody", "it")
    with pytest.raises(ValueError, match="a builder 'known' exists already"):
        builder(name="known")
    with pytest.raises(ValueError, match="builder 'known' exists with another model"):
        builder(name="known", base_instruction="Briefly: {instruction}", exist_ok=True)
    with pytest.raises(ValueError, match="there is no builder 'unknown'"):
        ChainBuilder.open("unknown")


def test_a_chain_of_a_builder_has_chainbreakers(models: ScriptedModels) -> None:
    answer(models, Count="one", Multiply="two")
    made = builder()
    breakers = [partial(chain_steps.stop_after, 1)]
    made.create_chain("short", ["Count {input}", "Multiply {input}"], chainbreakers=breakers)
    made.create_chain("long", ["Count {input}", "Multiply {input}"])

    assert (made.execute_chain("short", "it"), made.execute_chain("long", "it")) == ("one", "two")


def test_a_chain_is_made_again_by_a_script_that_runs_again(
    models: ScriptedModels, caplog: pytest.LogCaptureFixture
) -> None:
    answer(models, Greet="hello", Thank="thanks")
    first = builder(name="again", exist_ok=True)
    first.create_chain("greet", ["Greet {input}"], group="words")
    first.execute_chain("greet", "Ann")
    assert caplog.messages == []

    second = builder(name="again", exist_ok=True)
    assert second.get_chain_output("greet") == "hello"
    second.create_chain("greet", ["Thank {input}"], group="words")

    assert caplog.messages == ["builder again: a new chain replaces 'greet', whose output is deleted"]
    assert second.get_group_status("words") == {"greet": "created"}
    assert second.get_chain_output("greet") is None
    assert second.execute_group("words", "Ann") == {"greet": "thanks"}


# --- other processes --------------------------------------------------------------------------------------------------


@pytest.mark.thorough("a killed client loses no run: held by fleet/test_chat.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_another_process_goes_on_where_one_was_killed(models: ScriptedModels, client: EmbeddedClient) -> None:
    answer(models, Slow={"reply": "slow", "delay_s": 3.0}, After="then")
    made = builder(name="shared")
    made.create_chain("slow", ["Slow {input}"], group="analysis")
    made.create_chain("next", ["Next {slow}"], group="analysis", dependencies=["slow"])
    made.create_chain("after", ["After {next}: {input}"], group="later", dependencies=["next"])
    start = "import sys; from cantata import ChainBuilder; ChainBuilder.open('shared').execute_group('analysis', 'it')"
    first = subprocess.Popen([sys.executable, "-c", start])
    until(lambda: made.get_chain_status("slow") in ("running", "completed"), "the first chain")

    first.kill()
    first.wait()
    second = subprocess.run(
        [sys.executable, "-c", OPEN, "shared"], capture_output=True, text=True, check=True, timeout=100
    )

    assert second.stdout.strip() == "{'slow': 'slow', 'next': 'said'} {'slow': 'completed', 'next': 'completed'} then"
    assert made.get_chain_output("after") == "then"


def test_outputs_outlive_their_run(models: ScriptedModels, client: EmbeddedClient) -> None:
    answer(models, Fine="kept")
    made = builder(name="kept")
    made.create_chain("a", ["Fine {input}"])
    made.execute_chain("a", "it")

    for key in client.redis.scan_iter(match="*:run:*"):
        client.redis.delete(key)

    assert ChainBuilder.open("kept").get_chain_output("a") == "kept"


@pytest.mark.thorough("that concurrent writes lose nothing is held by features/memory/test_memory.py")
@pytest.mark.slow("processes of their own start")
def test_two_processes_that_make_chains_at_once_lose_none(client: EmbeddedClient) -> None:
    made = builder(name="crowded")
    make = "import sys; from cantata import ChainBuilder; b = ChainBuilder.open('crowded')\n" + (
        "for i in range(20): b.create_chain(f'{sys.argv[1]}{i}', ['{input}'])"
    )

    makers = [subprocess.Popen([sys.executable, "-c", make, name]) for name in "ab"]

    assert [maker.wait(100) for maker in makers] == [0, 0]
    assert len(made.get_group_status("default")) == 40


def test_a_worker_that_is_killed_in_a_group_loses_nothing(
    models: ScriptedModels, client: EmbeddedClient, asked: Callable[[], list[str]]
) -> None:
    models.script(
        [{"match": "^Slow", "delay_s": 30, "times": 1}, {"match": "^Slow", "reply": "slow"}, {"reply": "said"}]
    )
    made = builder()
    made.create_chain("first", ["First {input}"])
    made.create_chain("slow", ["Slow {first}"], dependencies=["first"])
    made.create_chain("last", ["Last {slow}"], dependencies=["slow"])

    async def killed_in_between() -> dict[str, Any]:
        group = asyncio.ensure_future(made.execute_group_async("default", "it"))
        await asyncio.to_thread(until, lambda: any(prompt.startswith("Slow") for prompt in asked()), "the slow one")
        (lease,) = [lease for lease in client.ledger.leases.names() if lease.endswith("|slow")]
        os.kill(int(lease.split("|")[2].partition("~")[0].rpartition("#")[2]), signal.SIGKILL)
        return await group

    assert asyncio.run(killed_in_between()) == {"first": "said", "slow": "slow", "last": "said"}
    assert sorted(set(asked())) == ["First\n\nit", "Last slow", "Slow said"]
    assert asked().count("First\n\nit") == 1


def test_cancelling_an_execution_cancels_its_run(models: ScriptedModels, asked: Callable[[], list[str]]) -> None:
    answer(models, Slow={"reply": "slow", "delay_s": 60.0})
    made = builder()
    made.create_chain("slow", ["Slow {input}"])

    async def cancelled() -> None:
        task = asyncio.ensure_future(made.execute_chain_async("slow", "it"))
        await asyncio.to_thread(until, asked, "the question to the model")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    until(lambda: made.get_chain_status("slow") == "failed", "the end")
    assert made.get_chain_error("slow") == "the run was cancelled"


@pytest.mark.thorough("it waits for five seconds; cancelling one that runs is the test above")
@pytest.mark.slow("a step takes seconds, so that another waits for it")
def test_cancelling_an_execution_that_waits_for_its_dependencies_cancels_it_too(
    models: ScriptedModels, client: EmbeddedClient
) -> None:
    class Told(ChainBuilder):
        def _done(self, chains: BuilderPlan, chain_ids: Sequence[str]) -> dict[str, JsonValue]:
            if chain_ids == ["behind"]:
                starts.set()
            return super()._done(chains, chain_ids)

    starts = threading.Event()
    answer(
        models, Slow={"reply": "slow", "delay_s": 5.0}, Behind={"reply": "late", "delay_s": 30.0}
    )  # the run is cancelled before that
    made = Told(GPT)
    made.create_chain("slow", ["Slow {input}"])
    made.create_chain("behind", ["Behind {slow}"], dependencies=["slow"])

    async def cancelled() -> str:
        first = asyncio.ensure_future(made.execute_chain_async("slow", "it"))
        await asyncio.to_thread(until, lambda: made.get_chain_status("slow") == "running", "the chain")
        second = asyncio.ensure_future(made.execute_chain_async("behind", "it"))
        await asyncio.to_thread(starts.wait)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        return str(await first)

    assert asyncio.run(cancelled()) == "slow"

    until(
        lambda: (
            [run.status for run in client.runs() if run.labels.get("builder") == made.name]
            == ["cancelled", "succeeded"]
        ),
        "the end",
    )
    assert made.get_chain_output("behind") is None


def test_a_run_whose_acceptance_was_lost_on_the_way_back_is_found(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[], list[str]]
) -> None:
    made = builder()
    made.create_chain("a", ["Say {input}"], group="g")
    submit = Client.submit_chain

    def lost(self: Client, *arguments: Any, **named: Any) -> ChainRun:
        submit(self, *arguments, **named)
        raise UnavailableError("Redis went away before it answered")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "submit_chain", lost)
        with pytest.raises(UnavailableError):
            made.execute_group("g", "hello")

    assert made.wait_group("g") == {"a": "echo: Say\n\nhello"}
    assert len(asked()) == 1
