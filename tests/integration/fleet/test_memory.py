"""What is remembered, through real workers: by tools, in prompts, and by commands in texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cantata import ChainBuilder, Client, MemoryBank, PromptChain, create_memory_chain, memory_function
from cantata.client.client import EmbeddedClient
from cantata.errors import ConfigError, RunError, UnavailableError
from cantata.flows.definitions import Agent, Tool
from cantata.flows.wire import RunResult
from cantata.surfaces.cli.main import submit as commands
from cantata.testing import ScriptedModels
from tests.integration.fleet import memory_tools
from tests.integration.fleet.agent_stage import PATIENCE_S, AgentStage, agent, call
from tests.waiting import until

TOOLS = {name: Tool(function=f"memory_tools:{name}") for name in ("note", "prefer", "recall", "trespass", "crowd")}


@pytest.fixture
def bank(client: EmbeddedClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBank]:
    """The bank on the stack of this folder's tests; what tests leave in it is forgotten."""
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    with MemoryBank() as bank:
        yield bank
        for tenant in ("", "ann", "bob"):
            bank.of(tenant=tenant).clear_memories()


def ask(
    stage: AgentStage,
    it: Agent,
    text: str = "go",
    *,
    tenant: str | None = None,
    session: str | None = None,
    **more: Any,
) -> RunResult:
    labels = {} if tenant is None else {"tenant": tenant}
    run = stage.client(it, tools=TOOLS, **more).submit_turn(text, agent="it", session=session, labels=labels)
    return run.result(PATIENCE_S)


def run_tool(stage: AgentStage, name: str, tenant: str | None = None, **arguments: Any) -> Any:
    client = stage.client(agent(), tools=TOOLS)
    request = {"nodes": [{"node_id": "it", "kind": "tool", "name": name, "input": arguments}], "entry_node": "it"}
    return client.submit_chain(request, labels={} if tenant is None else {"tenant": tenant}).result(PATIENCE_S)


# Python


def test_a_bank_finds_its_redis_as_a_client_does(bank: MemoryBank, client: EmbeddedClient, stage: AgentStage) -> None:
    bank.store_memory("a", 1)

    assert client.memory.retrieve_memory("a") == 1
    assert stage.client(agent()).memory.of(tenant="ann").retrieve_memory("a") is None
    assert MemoryBank(client.redis_url, tenant="ann").tenant == "ann"


def test_a_bank_without_a_redis_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("CANTATA_HOME", str(tmp_path))

    with pytest.raises(UnavailableError, match="set REDIS_URL, or start a stack in this folder with `submit up`"):
        MemoryBank()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        MemoryBank(f"unix://{tmp_path}/nothing")


# Tools


def test_a_tool_remembers_for_the_tenant_of_its_run(stage: AgentStage, bank: MemoryBank) -> None:
    assert [run_tool(stage, "note", tenant, text="x").final_output for tenant in (None, "ann", "ann", "bob")] == [
        1,
        1,
        2,
        1,
    ]

    assert bank.retrieve_memory("notes") == ["x"]
    assert bank.of(tenant="ann").retrieve_memory("notes") == ["x", "x"]


def test_a_coroutine_reads_memory_too(stage: AgentStage, bank: MemoryBank) -> None:
    bank.of(tenant="ann").store_memory("a", {"deep": [1]})

    assert run_tool(stage, "recall", "ann", key="a").final_output == {"deep": [1]}
    assert run_tool(stage, "recall", key="a").final_output == "nothing"


def test_a_tool_of_a_tenant_does_not_reach_another(stage: AgentStage, bank: MemoryBank) -> None:
    answer = run_tool(stage, "trespass", "ann", other="bob")

    assert answer.error is not None
    assert "this is the memory of tenant 'ann', which cannot open that of 'bob'" in answer.error.message


def test_threads_of_a_tool_write_at_once(stage: AgentStage, bank: MemoryBank) -> None:
    assert run_tool(stage, "crowd", writers=20).final_output == 1
    assert len(bank.retrieve_memory("crowd")) == 20  # type: ignore[arg-type]  # a list


def test_a_model_keeps_preferences_through_a_tool_for_its_session(stage: AgentStage, bank: MemoryBank) -> None:
    stage.script({"times": 1, "tool_calls": [call("prefer", key="tone", value="curt")]}, {"reply": "done"})

    result = ask(stage, agent(tools=["prefer"]), tenant="ann", session="chat: 1/2")

    assert result.status == "succeeded", result.error
    assert bank.of(tenant="ann", session="chat: 1/2").retrieve_memory("tone", "preferences") == "curt"
    assert bank.of(tenant="ann").namespaces() == ["conversations"]


# Templates


def test_a_prompt_is_filled_with_what_it_names_and_nothing_is_filled_twice(stage: AgentStage, bank: MemoryBank) -> None:
    bank.store_memory("tone", "curt, {memory.preferences.name} and {input}", "preferences")
    bank.store_memory("name", "Ann", "preferences")
    bank.store_memory("a.b c", [1, {"ä": None}], "notes")
    it = agent(
        system='Be {memory.preferences.tone}. {"json": 1}',
        instructions=["For {memory.preferences.name}, {memory.notes.a.b c} {memory.x} {other}: {input}"],
    )

    result = ask(stage, it, "tell {memory.preferences.name}")

    assert result.warnings == []
    assert [message["content"] for message in stage.messages()] == [
        'Be curt, {memory.preferences.name} and {input}. {"json": 1}',
        'For Ann, [1,{"ä":null}] {memory.x} {other}:\n\ntell {memory.preferences.name}',
    ]


def test_what_is_not_remembered_is_left_empty_and_told_once(stage: AgentStage, bank: MemoryBank) -> None:
    stage.script({"times": 2, "tool_calls": [call("note", text="x")]}, {"reply": "done"})
    it = agent(tools=["note"], system="<{memory.preferences.tone}>", instructions=["{memory.preferences.tone}|{input}"])

    result = ask(stage, it)

    assert result.warnings == [
        "instruction 1 of agent 'it': there is no memory {memory.preferences.tone}, so it is left empty"
    ]
    assert [message["content"] for message in stage.messages()[:2]] == ["<>", "|\n\ngo"]


def test_memories_of_the_run_s_tenant_are_filled_in_and_those_of_its_session_first(
    stage: AgentStage, bank: MemoryBank
) -> None:
    for owner in ("", "ann"):
        bank.of(tenant=owner).store_memory("tone", f"tenant's {owner}", "preferences")
    bank.of(tenant="ann", session="s").store_memory("tone", "session's", "preferences")
    it = agent(instructions=["{memory.preferences.tone}: {input}"])

    for tenant, session in ((None, None), ("ann", None), ("ann", "t"), ("ann", "s"), ("bob", "s")):
        ask(stage, it, tenant=tenant, session=session)

    assert [prompt.partition(":")[0] for prompt in stage.prompts()] == [
        "tenant's ",
        "tenant's ann",
        "tenant's ann",
        "session's",
        "",
    ]


def test_a_prompt_stays_the_same_in_all_rounds_of_its_instruction(stage: AgentStage, bank: MemoryBank) -> None:
    bank.store_memory("tone", "before", "preferences")
    stage.script({"times": 1, "tool_calls": [call("prefer", key="tone", value="after")]}, {"reply": "done"})
    it = agent(
        tools=["prefer"],
        system="{memory.preferences.tone}",
        instructions=["{memory.preferences.tone} {input}", {"objective": "Be {memory.preferences.tone}", "tools": []}],
    )

    ask(stage, it)

    shown = [(messages[0]["content"], messages[1]["content"]) for messages in map(stage.messages, range(3))]
    assert shown[0] == shown[1] == ("before", "before\n\ngo")
    assert shown[2][0].startswith("after\n\nYour objective: Be after\n")


# Commands


def test_commands_in_a_text_are_done_and_answered_in_their_place(stage: AgentStage, bank: MemoryBank) -> None:
    bank.store_memory("list", [1, "a"], "notes")
    gets = ["memory get name", "MEMORY GET none", "MEMORY GET list", "MEMORY LIST"]
    text = "\n".join(["Hello", "MEMORY STORE name=Ann Lee = x", *gets, "MEMORY FLY x", "please MEMORY GET name"])
    it = agent(instructions=[{"memory": "notes"}])

    result = ask(stage, it, text)

    assert result.output == (
        "Hello\nStored 'name' in memory\nname = Ann Lee = x\nnone = Not found\nlist = [1,\"a\"]\nMemory keys: list, name\n"
        "Memory error: there is no verb 'FLY'; use STORE, GET or LIST\nplease MEMORY GET name"
    )
    assert bank.retrieve_memory("name", "notes") == "Ann Lee = x"


def test_a_command_that_cannot_be_done_is_answered_with_the_reason(stage: AgentStage, bank: MemoryBank) -> None:
    text = f"MEMORY STORE a=b\nMEMORY GET {'k' * 1025}"

    readonly, notes = (agent(instructions=[{"memory": namespace}]) for namespace in ("conversations", "notes"))

    stored, found = str(ask(stage, readonly, text).output).splitlines()
    assert stored.startswith(
        "Memory error: the namespace 'conversations' holds the conversations of sessions and is read-only"
    )
    assert found.endswith(" = Not found")

    _, stored, found = str(ask(stage, notes, f"{text}\nMEMORY STORE {'k' * 1025}=b").output).splitlines()
    for line in (stored, found):
        assert line.startswith("Memory error: the key 'kkk")
        assert "1,025 bytes; at most 1,024 are allowed" in line


def test_commands_are_done_for_the_tenant_of_the_run(stage: AgentStage, bank: MemoryBank) -> None:
    it = agent(instructions=[{"memory": "notes"}])

    ask(stage, it, "MEMORY STORE a=b", tenant="ann")

    assert ask(stage, it, "MEMORY GET a", tenant="ann").output == "a = b"
    assert ask(stage, it, "MEMORY GET a", tenant="bob").output == "a = Not found"


def test_a_memory_function_is_a_step_among_others(stage: AgentStage, bank: MemoryBank) -> None:
    stage.script({"match": "^Make", "reply": "MEMORY STORE colour=red"}, {"reply": "fine"})
    it = agent(instructions=["Make: {input}", {"memory": "notes"}, "Check: {input}"], full_history=True)

    result = ask(stage, it)

    history: list[Any] = list(result.history)
    assert [(entry["type"], entry["input"], entry["output"]) for entry in history][2:] == [
        ("function", "Function: memory of notes", "Stored 'colour' in memory"),
        ("model", "Stored 'colour' in memory", "fine"),
    ]
    assert stage.prompts()[-1] == "Check:\n\nStored 'colour' in memory"


@pytest.mark.parametrize("namespace", ["", "n" * 257, 5])
def test_a_namespace_that_cannot_be_one_is_refused(namespace: Any) -> None:
    with pytest.raises(ValueError, match="memory"):
        agent(instructions=[{"memory": namespace}])
    with pytest.raises(ValueError, match=r"memory_function\("):
        memory_function(namespace)


# PromptChain


def test_a_memory_chain_does_commands_and_then_its_instructions(models: ScriptedModels, bank: MemoryBank) -> None:
    models.script([{"reply": "done"}])
    chain = create_memory_chain("notes_chain", "notes", ["Say what happened: {input}"], models=["openai/gpt-4o-mini"])

    assert chain.process_prompt("MEMORY STORE a=b=c\nthank you") == "done"

    assert models.journal()[-1]["text"] == "Say what happened:\n\nStored 'a' in memory\nthank you"
    assert bank.retrieve_memory("a", "notes") == "b=c"
    assert chain.last_result is not None
    with Client() as client:
        assert client.run(chain.last_result.run_id).record().labels == {"chain": "notes_chain"}


def test_a_memory_chain_needs_no_models_and_remembers_in_the_next_run(bank: MemoryBank) -> None:
    create_memory_chain("c", "notes").process_prompt("MEMORY STORE a=b")

    assert create_memory_chain("c", "notes").process_prompt("MEMORY GET a\nMEMORY LIST x") == "a = b\nMemory keys: a"
    assert create_memory_chain("c").process_prompt("MEMORY GET a") == "a = Not found"


def test_a_text_of_very_many_commands_is_refused_before_the_first(bank: MemoryBank) -> None:
    with pytest.raises(
        RunError, match="has 1,002 memory commands, each of which is a call to Redis; 1,000 are allowed"
    ):
        create_memory_chain("c", "notes").process_prompt("MEMORY STORE a=b\n" + "MEMORY LIST\n" * 1001)

    assert bank.list_memories("notes") == []


def test_a_memory_function_stands_anywhere_in_a_chain(bank: MemoryBank) -> None:
    chain = PromptChain(
        models=[], instructions=[memory_tools.commands, memory_function("notes")], labels={"tenant": "ann"}
    )

    assert chain.process_prompt("hello") == "Stored 'said' in memory\nMemory keys: said"
    assert bank.of(tenant="ann").retrieve_memory("said", "notes") == "hello"


def test_a_memory_chain_needs_a_name() -> None:
    with pytest.raises(ValueError, match="chain_id is a text that names the chain"):
        create_memory_chain(" ")


def test_a_chain_and_a_builder_have_the_memories_of_their_tenant(bank: MemoryBank) -> None:
    chain = PromptChain([], [memory_function("notes")], labels={"tenant": "ann"})
    made = ChainBuilder("openai/gpt-4o-mini", labels={"tenant": "ann"})

    chain.store_memory("tone", {"voice": "calm"}, namespace="notes")
    made.store_memory("count", 2, "notes")

    assert chain.process_prompt("MEMORY LIST") == "Memory keys: count, tone"
    assert made.retrieve_memory("tone", "notes") == {"voice": "calm"}
    assert chain.retrieve_memory("none", "notes", "default") == "default"
    assert (chain.memory_exists("count", "notes"), PromptChain([], [len]).memory_exists("count", "notes")) == (
        True,
        False,
    )
    assert (made.clear_memories("notes"), chain.list_memories("notes")) == (2, [])


def test_a_chain_makes_memory_functions_and_memory_chains_with_its_model(
    models: ScriptedModels, bank: MemoryBank
) -> None:
    models.script([{"reply": "done"}])
    chain = PromptChain(
        [{"name": "openai/gpt-4o-mini", "params": {"temperature": 0.5}}], ["{input}"], labels={"tenant": "ann"}
    )
    memory_chain = chain.create_memory_chain("notes_chain", "notes", ["Say what happened: {input}"])

    assert chain.create_memory_function("notes") == memory_function("notes")
    assert memory_chain.process_prompt("MEMORY STORE a=b") == "done"
    body: Any = models.journal()[-1]["body"]
    assert (body["model"], body["temperature"]) == ("gpt-4o-mini", 0.5)
    assert chain.retrieve_memory("a", "notes") == "b"


def test_a_builder_makes_memory_chains_among_its_chains(models: ScriptedModels, bank: MemoryBank) -> None:
    models.script([{"reply": "done"}])
    made = ChainBuilder("openai/gpt-4o-mini", labels={"tenant": "ann"})
    made.create_memory_chain("keeper", "notes", ["Say what happened: {input}"])

    assert made.execute_group("memory_chains", "MEMORY STORE a=b") == {"keeper": "done"}
    assert made.list_memories("notes") == ["a"]


# The command line


def submit(*words: str) -> Result:
    return CliRunner().invoke(commands, ["memory", *words])


def test_values_are_kept_and_found_by_commands(bank: MemoryBank) -> None:
    for key, value in (
        ("text", "two words"),
        ("json", '{"a": [1, null]}'),
        ("number", "7"),
        ("nan", "NaN"),
        ("quoted", '"7"'),
    ):
        assert submit("set", key, value, "--namespace", "n:1").exit_code == 0

    assert {key: bank.retrieve_memory(key, "n:1") for key in bank.list_memories("n:1")} == {
        "text": "two words",
        "json": {"a": [1, None]},
        "number": 7,
        "nan": "NaN",
        "quoted": "7",
    }
    assert submit("get", "text", "--namespace", "n:1").stdout == "two words\n"
    assert submit("get", "text", "--namespace", "n:1", "--json").stdout == '"two words"\n'
    assert submit("get", "json", "--namespace", "n:1").stdout == '{"a": [1, null]}\n'
    assert submit("list", "--namespace", "n:1").stdout == "json\nnan\nnumber\nquoted\ntext\n"
    assert json.loads(submit("namespaces", "--json").stdout) == bank.namespaces()
    assert submit("clear", "--namespace", "n:1", "--json").stdout == '{"cleared": 5}\n'


def test_a_missing_value_is_a_failure_that_says_so(bank: MemoryBank) -> None:
    bank.store_memory("nothing", None)

    missing = submit("get", "a key", "--namespace", "notes")

    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr == "there is no key 'a key' in namespace 'notes'; `submit memory list` shows the keys\n"
    assert submit("get", "nothing").stdout == "null\n"
    assert "namespace 'notes' is empty" in submit("list", "--namespace", "notes").stderr


def test_commands_are_about_one_tenant_or_session(bank: MemoryBank) -> None:
    submit("set", "a", "ann's", "--tenant", "ann")
    submit("set", "a", "session's", "--tenant", "ann", "--session", "cli")

    assert submit("get", "a").exit_code == 1
    assert submit("get", "a", "--tenant", "ann").stdout == "ann's\n"
    assert submit("get", "a", "--tenant", "ann", "--session", "cli").stdout == "session's\n"
    assert submit("clear", "--all", "--tenant", "ann").stderr == "deleted 1 value\n"
    assert submit("clear", "--all", "--tenant", "ann", "--session", "cli").stderr == "deleted 1 value\n"


def test_a_value_may_be_kept_for_a_while(bank: MemoryBank) -> None:
    submit("set", "a", "1", "--ttl", "0.05")

    until(lambda: submit("get", "a").exit_code == 1, "its end")
    assert submit("set", "a", "1", "--ttl", str(50 * 365 * 86_400)).exit_code == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["set", "k" * 1025, "v"], 2, "has 1,025 bytes; at most 1,024 are allowed"),
        (["set", "a", "1", "--namespace", "conversations"], 2, "is read-only"),
        (["set", "a", "1", "--session", " "], 2, "the session's name is empty"),
        (["set", "a", "1", "--ttl", "0"], 2, "--ttl"),
        (["clear"], 2, "--namespace NAME or --all"),
        (["clear", "--all", "--namespace", "a"], 2, "--namespace NAME or --all"),
    ],
)
def test_wrong_use_is_told(bank: MemoryBank, words: list[str], status: int, said: str) -> None:
    result = submit(*words)

    assert result.exit_code == status
    assert said in result.stderr


def test_odd_keys_are_listed_in_one_line_each(bank: MemoryBank) -> None:
    for key in ("a\nb", "\x1b[31mred", "ключ"):
        bank.store_memory(key, "\x1b[31mred\x1b[0m", "odd")

    assert sorted(submit("list", "--namespace", "odd").stdout.splitlines()) == ['"\\u001b[31mred"', '"a\\nb"', "ключ"]
    assert submit("get", "ключ", "--namespace", "odd").stdout == "red\n"
    bank.clear_memories("odd")


def test_without_a_service_reading_says_so_and_keeping_starts_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "home"))

    missing = submit("get", "a")
    kept = submit("set", "a", "1")

    assert (missing.exit_code, kept.exit_code) == (3, 0)
    assert "nothing is kept here" in missing.stderr
    assert submit("get", "a").stdout == "1\n"


# Conversations


def test_what_was_said_in_sessions_is_shown(stage: AgentStage, bank: MemoryBank, client: EmbeddedClient) -> None:
    stage.script({"reply": "hello, Ann"})
    ask(stage, agent(), "I am Ann", tenant="ann", session="one")
    ann = bank.of(tenant="ann")

    said: Any = ann.retrieve_memory("one", "conversations")

    assert [(entry["role"], entry["content"]) for entry in said] == [("user", "I am Ann"), ("assistant", "hello, Ann")]
    assert said[1]["agent"] == "it"
    assert said[0]["ts"] > 0
    assert "one" in ann.list_memories("conversations")
    assert "conversations" in ann.namespaces()
    assert ann.memory_exists("one", "conversations")
    assert ann.of(session="one").list_memories("conversations") == ["one"]
    assert ann.of(session="two").list_memories("conversations") == []
    assert "one" not in bank.of(tenant="bob").list_memories("conversations")
    assert not bank.memory_exists("one", "conversations")
    assert ann.clear_memories() == 0
    assert ann.memory_exists("one", "conversations")

    ask(stage, agent(instructions=["{memory.conversations.one}|{input}"]), tenant="ann")
    assert stage.prompts()[-1].startswith('[{"role":"user","content":"I am Ann"')
    with pytest.raises(ConfigError, match="is read-only"):
        client.memory.clear_memories("conversations")
