"""AgentChain in Python: the documented snippets run, in every mode, by workers; what happens is in the run log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cantata import AgentChain, PromptChain, RunError, UnavailableError
from cantata.client.client import EmbeddedClient
from cantata.testing import ScriptedModels
from tests.integration.fleet import agentchain_functions as functions
from tests.waiting import until

GPT = "openai/gpt-4o-mini"
MCP_SERVER = Path(__file__).parents[1] / "mcp" / "mcp_server.py"
DESCRIPTIONS = {"ann": "adds plus", "bob": "writes poems", "cleo": "finds facts"}
ROUTER = {
    "models": [GPT],
    "instructions": [None, "{input}"],
    "decision_prompt_template": "Route '{user_input}' after '{history}': {agent_details}",
}

Line = dict[str, Any]


@pytest.fixture(autouse=True)
def asked(client: EmbeddedClient, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The chains of these tests run on the stack of this folder's tests; the prompts that came since the test began."""
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    models.script([])
    before = len(models.journal())
    return lambda: [str(line["text"]) for line in models.journal()[before:]]


def chain(mode: str = "router", **given: Any) -> AgentChain:
    agents = {name: PromptChain([GPT], [f"{name} <{{input}}>"]) for name in DESCRIPTIONS}
    router = {"router": ROUTER} if mode == "router" else {}
    return AgentChain(
        **{"agents": agents, "agent_descriptions": DESCRIPTIONS, "execution_mode": mode, **router, **given}
    )


def script(models: ScriptedModels, **replies: Any) -> None:
    """What the model says to a prompt that begins with a word: a text, or several that it says one after the other."""
    rules = []
    for word, said in replies.items():
        texts = said if isinstance(said, list) else [said]
        told = [text if isinstance(text, str) else json.dumps(text) for text in texts]
        rules += [{"match": f"(?s)^{word}\\b", "reply": text, "times": 1} for text in told[:-1]]
        rules.append({"match": f"(?s)^{word}\\b", "reply": told[-1]})
    models.script(rules)


def chosen(name: str, query: str | None = None) -> Any:
    return {"chosen_agent": name, "refined_query": query}


def ask(made: AgentChain, *texts: str) -> list[str]:
    """Have texts answered, one after the other."""

    async def all_of_them() -> list[str]:
        return [await made.process_input(text) for text in texts]

    return asyncio.run(all_of_them())


def lines(folder: Path, *skipped: str) -> list[Line]:
    """The lines of the run log of this process."""
    (file,) = folder.glob("run_*.jsonl")
    return [line for line in map(json.loads, file.read_text().splitlines()) if line["event"] not in skipped]


def events(folder: Path, *skipped: str) -> list[str]:
    return [line["event"] for line in lines(folder, *skipped)]


# The documented page. Only the import lines are others, and the quotes within a text.

SNIPPET = """
from cantata import PromptChain
from cantata import AgentChain
import asyncio

# --- Example Agent Setup (using placeholder PromptChains) ---
math_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Solve: {input}"])
creative_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Write about: {input}"])
rag_agent = PromptChain(models=["openai/gpt-4o-mini"], instructions=["Retrieve info: {input}"])

agent_dict = {
    "math_agent": math_agent,
    "creative_agent": creative_agent,
    "rag_agent": rag_agent
}

agent_descriptions_dict = {
    "math_agent": "Handles mathematical calculations and problem-solving.",
    "creative_agent": "Generates creative text like poems, stories, or ideas.",
    "rag_agent": "Retrieves information from a knowledge base based on the query."
}

# --- Example Router Config (for 'router' mode) ---
default_llm_router_config = {
    "models": ["openai/gpt-4o-mini"],
    "instructions": [None, "{input}"],
    "decision_prompt_template": 'Analyze history: {history} and input: {user_input} considering \
agent details: {agent_details}. Choose the best agent. Respond JSON: {"chosen_agent": "<agent_name>"}'
}

# --- Example Synthesizer Config (for 'broadcast' mode) ---
synthesizer_config_example = {
   "model": "openai/gpt-4o-mini",
   "prompt": "Synthesize the best answer based on the original query '{user_input}' and the following responses \
from different agents:\\n\\n{agent_responses}\\n\\nProvide a single, coherent final answer."
}


# --- AgentChain Initialization Example ('router' mode) ---
agent_orchestrator = AgentChain(
    router=default_llm_router_config, # Required for 'router' mode
    agents=agent_dict,
    agent_descriptions=agent_descriptions_dict,
    execution_mode="router", # Specify the mode
    log_dir="logs/agent_chain_logs", # Optional: Enable file logging
    verbose=True, # Enable AgentChain's own print statements
    max_internal_steps=5 # Optional: Max re-routes for 'router' mode
    # synthesizer_config=synthesizer_config_example # Add this if execution_mode="broadcast"
)
"""

SNIPPET_OF_MCP = """
import logging


async def main():
    # Connect MCPs
    logging.info("Connecting MCP servers...")
    for agent_name, agent_instance in agent_orchestrator.agents.items():
        if hasattr(agent_instance, 'mcp_helper') and agent_instance.mcp_helper:
            try:
                await agent_instance.mcp_helper.connect_mcp_async()
                # ... logging ...
            except Exception as mcp_err:
                raise

    # Run the chat
    try:
        await agent_orchestrator.run_chat()
    finally:
        # Close MCPs
        logging.info("Closing MCP connections...")
        for agent_name, agent_instance in agent_orchestrator.agents.items():
             if hasattr(agent_instance, 'mcp_helper') and agent_instance.mcp_helper:
                 try:
                     await agent_instance.mcp_helper.close_mcp_async()
                     # ... logging ...
                 except Exception as close_err:
                     raise
"""

ASKING = """
print(asyncio.run(agent_orchestrator.process_input("2 + 2")))
print(asyncio.run(agent_orchestrator.run_agent_direct("rag_agent", "gold")))
broadcast = AgentChain(agents=agent_dict, agent_descriptions=agent_descriptions_dict, execution_mode="broadcast",
                       synthesizer_config=synthesizer_config_example)
print(asyncio.run(broadcast.process_input("all")))
"""

CHATTING = """
if __name__ == "__main__":
    asyncio.run(main())
"""


def run_script(folder: Path, text: str, said: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, input=said, capture_output=True, text=True, timeout=120, check=False)


def test_the_page_of_agentchain_is_a_script_that_runs(
    models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    script(models, Analyze=chosen("math_agent"), Solve="4", Retrieve="a metal", Write="a poem", Synthesize="all of it")

    done = run_script(tmp_path, SNIPPET + ASKING)

    assert (done.stderr, done.returncode) == ("", 0)
    told = [line for line in done.stdout.splitlines() if line in ("4", "a metal", "all of it")]
    assert told == ["4", "a metal", "all of it"]
    assert 'router_decision source="router" agent="math_agent"' in done.stdout, "it is verbose"
    prompts = asked()
    assert prompts[0].startswith("Analyze history: No previous conversation history. and input: 2 + 2 considering")
    assert prompts[0].endswith('Respond JSON: {"chosen_agent": "<agent_name>"}')
    assert prompts[1:3] == ["Solve:\n\n2 + 2", "Retrieve info:\n\ngold"]
    assert "original query 'all'" in prompts[-1]
    assert "process_input_end" in events(tmp_path / "logs" / "agent_chain_logs")


def test_the_page_s_chat_runs_with_its_mcp_lines(models: ScriptedModels, tmp_path: Path) -> None:
    script(models, Analyze=chosen("math_agent"), Solve="4", Retrieve="a metal")

    done = run_script(
        tmp_path,
        SNIPPET.replace("verbose=True", "verbose=False") + SNIPPET_OF_MCP + CHATTING,
        "2 + 2\n@rag_agent: gold\n@nobody: gold\nexit\n",
    )

    unknown = "error: Agent 'nobody' not recognized. The agents here are: math_agent, creative_agent, rag_agent\n"
    assert (done.stderr, done.returncode) == (unknown, 0)
    assert done.stdout.split("\n")[:2] == ["4", "a metal"]
    (file,) = (tmp_path / "logs" / "agent_chain_logs").glob("router_chat_*.jsonl")
    assert re.fullmatch(r"router_chat_\d{8}_\d{6}_\d{6}_[0-9a-f]{8}\.jsonl", file.name)
    told = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert (told[0], told[-1]) == ("chat_started", "chat_ended")
    assert {"process_input_end", "direct_call_detected", "run_direct_end", "direct_call_agent_not_found"} <= set(told)


# Router


def test_the_router_chooses_and_may_ask_in_better_words(
    models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    script(models, Route=chosen("bob", "a short poem"), bob="roses")
    made = chain(log_dir=tmp_path)

    assert ask(made, "poem?") == ["roses"]
    assert asked()[1] == "bob <a short poem>"
    assert made.last_result is not None
    assert made.last_result.agents == ["bob"]
    assert events(tmp_path) == [
        "AgentChain initialized",
        "process_input_start",
        "router_strategy",
        "router_internal_step_start",
        "prepare_full_decision_prompt",
        "complex_router_output",
        "parse_decision_success",
        "router_decision",
        "agent_execution_start",
        "agent_execution_success",
        "agent_final_response_no_prefix",
        "history_add",
        "history_add",
        "process_input_end",
    ]
    told = {line["event"]: line for line in lines(tmp_path)}
    assert (
        told["router_decision"].items()
        >= {"agent": "bob", "source": "router", "refined_query_present": True, "internal_step": 1}.items()
    )
    assert told["agent_execution_start"]["input_length"] == len("a short poem")
    assert (
        told["process_input_end"].items()
        >= {"mode": "router", "response_length": 5, "agent_used": "bob", "status": "succeeded"}.items()
    )
    assert all(
        (line["run_id"], line["session"]) == (made.last_result.run_id, made.session) for line in lines(tmp_path)[1:]
    )


def test_rules_choose_before_the_router(models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path) -> None:
    script(models, ann="3", bob="roses", Route=chosen("cleo"), cleo="a fact")
    made = chain(rules=[("(?i)poem", "bob"), (functions.is_a_sum, "ann")], log_dir=tmp_path)

    assert ask(made, "a Poem", "1 plus 2", "what?") == ["roses", "3", "a fact"]
    assert sum(prompt.startswith("Route") for prompt in asked()) == 1
    seen = [name for name in events(tmp_path) if name.startswith("simple_router")]
    assert seen == ["simple_router_match", "simple_router_match", "simple_router_defer"]


def test_a_router_that_is_a_function_sees_the_conversation(asked: Callable[[], list[str]]) -> None:
    made = chain(router=functions.choose)

    assert ask(made, "poems please", "plus one") == [
        "echo: bob <poems please after []>",
        asked()[-1].join(["echo: ", ""]),
    ]
    assert asked()[-1] == "ann <plus one after ['user: poems please', 'assistant: echo: bob <poems please after []>']>"


def test_an_answer_may_go_back_to_the_router(models: ScriptedModels, tmp_path: Path) -> None:
    script(models, Route=[chosen("ann"), chosen("bob")], ann="[REROUTE] rhyme it", bob="[FINAL]  done ")
    made = chain(log_dir=tmp_path)

    assert ask(made, "go") == ["done"]
    names = events(tmp_path)
    assert names.count("router_internal_step_start") == 2
    told = {line["event"]: line for line in lines(tmp_path)}
    assert told["agent_reroute_requested"]["next_input_length"] == len("rhyme it")
    assert told["agent_final_response_prefix"]["agent"] == "bob"
    assert [line["internal_step"] for line in lines(tmp_path) if line["event"] == "router_decision"] == [1, 2]


def test_an_agent_that_always_reroutes_is_stopped_and_said_so(models: ScriptedModels, tmp_path: Path) -> None:
    script(models, Route=chosen("ann"), ann="[REROUTE] again")
    made = chain(max_internal_steps=2, log_dir=tmp_path)

    with pytest.raises(RunError, match=r"^\[Info\] Reached max internal steps \(2\)") as caught:
        ask(made, "go")

    assert caught.value.status == "exhausted"
    assert made.last_result is not None
    assert made.last_result.output == "[REROUTE] again"
    assert events(tmp_path)[-4:] == ["history_add", "history_add", "router_max_steps_reached", "process_input_end"]


def test_a_router_that_does_not_decide_is_an_error_unless_there_is_a_default(
    models: ScriptedModels, tmp_path: Path
) -> None:
    script(models, Route="hm", cleo="a fact")

    with pytest.raises(RunError, match=r"^I couldn't determine which agent should handle your request\."):
        ask(chain(log_dir=tmp_path), "go")
    assert {"parse_decision_error", "router_decision_failed", "agent_selection_failed"} <= set(events(tmp_path))
    assert ask(chain(default_agent="cleo"), "go") == ["a fact"]
    with pytest.raises(RunError, match="couldn't determine which agent"):
        ask(chain(router=functions.choose_badly), "go")


def test_a_failed_agent_is_an_error_that_names_it(models: ScriptedModels, tmp_path: Path) -> None:
    models.script(
        [{"match": "^Route", "reply": json.dumps(chosen("ann"))}, {"match": "^ann", "status": 400, "reply": "no"}]
    )
    made = chain(log_dir=tmp_path)

    with pytest.raises(RunError, match=r"^Sorry, agent ann encountered an error: ") as caught:
        ask(made, "go")

    assert caught.value.status == "failed"
    told = {line["event"]: line for line in lines(tmp_path)}
    assert told["agent_execution_error"]["agent"] == "ann"
    assert told["process_input_end"]["error"] == str(caught.value)

    with pytest.raises(
        RunError, match=r"^I encountered an error running the ann: .*the provider refuses the request"
    ) as caught:
        asyncio.run(made.run_agent_direct("ann", "go"))

    assert made.last_result is not None
    assert made.last_result.error is not None
    assert (caught.value.run_id, caught.value.status) == (made.last_result.run_id, "failed")
    assert str(caught.value).endswith(made.last_result.error.message)


def test_a_static_plan_is_worked_off(models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path) -> None:
    script(models, Route={"plan": ["cleo", "bob"], "initial_input": "gold"}, cleo="a metal", bob="a poem of it")
    made = chain(router_strategy="static_plan", log_dir=tmp_path)

    assert ask(made, "go") == ["a poem of it"]
    assert asked()[1:] == ["cleo <gold>", "bob <a metal>"]
    assert [name for name in events(tmp_path) if name.startswith("static_plan")] == [
        "static_plan_created",
        "static_plan_step_start",
        "static_plan_step_success",
        "static_plan_step_start",
        "static_plan_step_success",
    ]


def test_a_router_may_decide_after_each_agent(models: ScriptedModels, tmp_path: Path) -> None:
    steps = [
        {"next_action": "call_agent", "agent_name": "cleo", "agent_input": "gold"},
        {"next_action": "final_answer", "final_answer": "so"},
    ]
    script(models, Route=steps, cleo="a metal")
    made = chain(router_strategy="dynamic_decomposition", log_dir=tmp_path)

    assert ask(made, "go") == ["so"]
    told = [line for line in lines(tmp_path) if line["event"] == "dynamic_decomp_decision"]
    assert [line["next_action"] for line in told] == ["call_agent", "final_answer"]


# The other modes


def test_a_pipeline_gives_each_agent_the_answer_before(
    models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    script(models, ann="from ann", bob="[FINAL] from bob", cleo="from cleo")
    made = chain("pipeline", log_dir=tmp_path)

    assert ask(made, "hello") == ["from cleo"]
    assert asked() == ["ann <hello>", "bob <from ann>", "cleo <[FINAL] from bob>"]
    starts = [line for line in lines(tmp_path) if line["event"] == "pipeline_step_start"]
    assert [(line["step"], line["total_steps"], line["agent"], line["input_length"]) for line in starts] == [
        (1, 3, "ann", 5),
        (2, 3, "bob", 8),
        (3, 3, "cleo", 16),
    ]
    assert starts[0].items() >= {"input_type": "str", "history_included": False}.items()
    assert events(tmp_path).count("pipeline_step_success") == 3


def test_agents_with_rows_and_tools_are_one_line_each(models: ScriptedModels, tmp_path: Path) -> None:
    models.script(
        [
            {"match": r"^use\b", "after_tools": 0, "tool_calls": [{"name": "shout", "arguments": {"text": "a"}}]},
            {"match": r"^use\b", "reply": "used"},
        ]
    )
    user = PromptChain([GPT], ["use {input}"])
    user.register_tool_function(functions.shout)
    row = PromptChain([GPT], ["{input}", functions.shout, PromptChain([GPT], ["inner {input}", "more {input}"])])
    made = chain(
        "pipeline", agents={"user": user, "row": row}, agent_descriptions={"user": "", "row": ""}, log_dir=tmp_path
    )

    answers = ask(made, "hello")

    told = [(line["event"], line["agent"]) for line in lines(tmp_path) if "agent" in line]
    assert told == [(f"pipeline_step_{word}", agent) for agent in ("user", "row") for word in ("start", "success")]
    success = [line for line in lines(tmp_path) if line["event"] == "pipeline_step_success"]
    assert [line["response_length"] for line in success] == [4, len(answers[0])]


def test_a_pipeline_stops_at_the_first_failure(models: ScriptedModels, tmp_path: Path) -> None:
    models.script([{"match": "^bob", "status": 400, "reply": "no"}])

    with pytest.raises(RunError, match=r"^Pipeline failed at step 2 \(bob\): "):
        ask(chain("pipeline", log_dir=tmp_path), "hello")

    assert [line["agent"] for line in lines(tmp_path) if line["event"].startswith("pipeline_step_")] == [
        "ann",
        "ann",
        "bob",
        "bob",
    ]
    assert "pipeline_step_error" in events(tmp_path)


def test_turns_go_round(tmp_path: Path) -> None:
    made = chain("round_robin", log_dir=tmp_path)

    answers = ask(made, "1", "2", "3", "4")
    made.remove_agent("ann")
    answers += ask(made, "5", "6")

    assert [answer.removeprefix("echo: ").split()[0] for answer in answers[:4]] == ["ann", "bob", "cleo", "ann"]
    assert sorted(answer.removeprefix("echo: ").split()[0] for answer in answers[4:]) == ["bob", "cleo"]
    starts = [line for line in lines(tmp_path) if line["event"] == "round_robin_agent_start"]
    assert [(line["agent"], line["next_index"]) for line in starts[:4]] == [
        ("ann", 1),
        ("bob", 2),
        ("cleo", 0),
        ("ann", 1),
    ]
    assert "remove_agent" in events(tmp_path)


def test_a_broadcast_is_the_json_of_all_answers_or_what_is_made_of_it(models: ScriptedModels, tmp_path: Path) -> None:
    script(models, ann="a", bob="b", cleo="c", Merge="abc")
    merging = {"model": GPT, "prompt": "Merge {agent_responses} for {user_input}"}

    assert json.loads(ask(chain("broadcast", log_dir=tmp_path), "go")[0]) == {"ann": "a", "bob": "b", "cleo": "c"}
    assert ask(chain("broadcast", synthesizer_config=merging, log_dir=tmp_path), "go") == ["abc"]
    seen = events(tmp_path)
    assert (seen.count("broadcast_agent_start"), seen.count("broadcast_agent_success")) == (6, 6)
    assert (seen.count("broadcast_concatenation"), seen.count("broadcast_synthesis_success")) == (1, 1)


def test_a_failed_agent_and_a_failed_synthesizer_are_in_the_log(models: ScriptedModels, tmp_path: Path) -> None:
    models.script([{"match": "^(bob|Merge)", "status": 400, "reply": "no"}, {"reply": "fine"}])
    merging = {"model": GPT, "prompt": "Merge {agent_responses}"}

    answer = json.loads(ask(chain("broadcast", synthesizer_config=merging, log_dir=tmp_path), "go")[0])

    assert answer["bob"].startswith("Error: ")
    told = {line["event"]: line for line in lines(tmp_path)}
    assert {"broadcast_agent_error", "broadcast_synthesis_error", "warning"} <= told.keys()
    assert "the provider refuses the request" in told["broadcast_synthesis_error"]["error"]


# The conversation


def test_a_direct_turn_is_past_all_routing_and_may_be_told_the_conversation(
    models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    script(models, Route=chosen("bob"), bob="roses")
    made = chain(log_dir=tmp_path)

    async def talk() -> list[str]:
        return [
            await made.process_input("a poem"),
            await made.run_agent_direct("ann", "add"),
            await made.run_agent_direct("cleo", "who?", send_history=True),
        ]

    assert asyncio.run(talk())[:2] == ["roses", "echo: ann <add>"]
    assert asked()[-1].startswith("cleo <Conversation History:\nUser: a poem\nAssistant: roses\nUser: add\n")
    assert asked()[-1].endswith("Current Input:\nwho?>")
    assert [(entry.role, entry.agent) for entry in made.history()] == [
        ("user", None),
        ("assistant", "bob"),
        ("user", None),
        ("assistant", "ann"),
        ("user", None),
        ("assistant", "cleo"),
    ]
    assert [name for name in events(tmp_path) if name.startswith("run_direct")] == [
        "run_direct_start",
        "run_direct_finished",
        "run_direct_end",
    ] * 2


def test_answers_know_their_agent_also_if_its_last_step_calls_no_model() -> None:
    agents = {
        "ann": PromptChain([], [functions.shout]),
        "bob": PromptChain([GPT], ["bob <{input}>", functions.shout]),
        "cleo": PromptChain([GPT], ["cleo <{input}>", PromptChain([GPT], ["inner <{input}>"])]),
    }
    turns = chain("round_robin", agents=agents)
    ask(turns, "1", "2", "3")
    asyncio.run(turns.run_agent_direct("ann", "4"))
    direct = turns.last_result
    row = chain(
        "pipeline", agents={name: agents[name] for name in ("cleo", "ann")}, agent_descriptions={"cleo": "", "ann": ""}
    )
    ask(row, "5")
    routed = chain(agents=agents, router=functions.choose, rules=[(functions.is_a_sum, "ann")])
    ask(routed, "plus")

    assert [entry.agent for entry in turns.history()] == [None, "ann", None, "bob", None, "cleo", None, "ann"]
    assert direct is not None
    assert direct.agents == ["ann"]
    assert [entry.agent for entry in row.history()] == [None, "ann"]
    assert row.last_result is not None
    assert row.last_result.agents == ["cleo", "ann"]
    assert [entry.agent for entry in routed.history()] == [None, "ann"]


def test_an_agent_does_not_see_the_answers_of_an_agent_that_is_a_function(models: ScriptedModels) -> None:
    agents = {"ann": PromptChain([], [functions.shout]), "bob": PromptChain([GPT], ["bob <{input}>"])}
    made = chain(
        "round_robin",
        agents=agents,
        agent_descriptions={"ann": "", "bob": ""},
        agent_history_configs={"bob": {"exclude_sources": ["ann"]}},
    )

    ask(made, "one", "two")

    contents = [message["content"] for message in cast("Line", models.journal()[-1]["body"])["messages"]]
    assert contents[0] == "one"
    assert "ONE" not in contents


def test_a_conversation_goes_on_in_another_process(asked: Callable[[], list[str]]) -> None:
    first = chain("round_robin", auto_include_history=True)
    ask(first, "one")

    second = chain("round_robin", auto_include_history=True, session=first.session)
    ask(second, "two")

    assert asked()[-1].startswith("bob <Conversation History:\nUser: one\n")
    assert [entry.content for entry in second.history()][::2] == ["one", "two"]


def test_turns_of_one_conversation_that_are_asked_at_once_are_not_mixed_up() -> None:
    made = chain("round_robin")

    async def at_once() -> list[str]:
        return await asyncio.gather(*(made.process_input(f"n{number}") for number in range(6)))

    answers = asyncio.run(at_once())

    assert [re.findall(r"n\d", answer) for answer in answers] == [[f"n{number}"] for number in range(6)]
    entries = made.history()
    assert all(user.run_id == answer.run_id for user, answer in zip(entries[::2], entries[1::2], strict=True))


def test_an_answer_that_is_no_text_is_json() -> None:
    made = chain(
        "pipeline",
        agents={"ann": PromptChain([], [functions.shout], full_history=True)},
        agent_descriptions={"ann": ""},
    )

    assert [step["output"] for step in json.loads(ask(made, "hi")[0])] == ["hi", "HI"]


def test_a_turn_that_nobody_waits_for_any_more_is_cancelled(
    client: EmbeddedClient, models: ScriptedModels, asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    models.script([{"delay_s": 30}])
    made = chain("pipeline", log_dir=tmp_path)

    async def hurry() -> None:
        waiting = asyncio.create_task(made.process_input("late"))
        await asyncio.to_thread(until, asked, "the question to the model")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(hurry())

    until(lambda: client.runs(most=1)[0].status == "cancelled", "the end of the run")
    until(lambda: "process_input_end" in events(tmp_path), "the end in the log")
    assert lines(tmp_path)[-1]["status"] == "cancelled"


def test_a_turn_that_takes_too_long_is_an_error(models: ScriptedModels) -> None:
    models.script([{"delay_s": 30}])

    with pytest.raises(RunError) as caught:
        ask(chain("pipeline", timeout_s=1), "late")

    assert caught.value.status == "timed_out"


# MCP servers


def test_a_helper_asks_whether_the_servers_of_a_chain_answer(tmp_path: Path) -> None:
    def helper(*servers: dict[str, Any]) -> Any:
        inner = PromptChain([GPT], ["{input}"], mcp_servers=servers)
        return PromptChain([GPT], [inner, "{input}"]).mcp_helper

    (tmp_path / "journal").touch()
    good = {"id": "notes", "command": sys.executable, "args": [str(MCP_SERVER), "--journal", str(tmp_path / "journal")]}

    async def connect_and_close(asking: Any) -> None:
        await asking.connect_mcp_async()
        await asking.close_mcp_async()

    asyncio.run(connect_and_close(helper(good)))
    assert (tmp_path / "journal").read_text(), "a worker began it"
    with pytest.raises(UnavailableError, match=r"MCP server 'none'.*no-such-command") as caught:
        asyncio.run(connect_and_close(helper(good, {"id": "none", "command": "no-such-command"})))
    assert "'notes'" not in str(caught.value)
    assert helper() is None


# The run log


def test_what_happens_is_told_to_the_console_too(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "cantata.frontends.agentchain"):
        ask(chain("pipeline", verbose=True), "hi")

    told = [record.getMessage() for record in caplog.records if record.name == "cantata.frontends.agentchain"]
    assert 'pipeline_step_success step=1 total_steps=3 agent="ann" response_length=14' in "\n".join(told)
    assert capsys.readouterr().out.splitlines() == told


def test_a_run_log_that_cannot_be_written_fails_no_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").touch()
    made = chain("pipeline", log_dir=tmp_path / "taken")

    assert len(ask(made, "hi", "again")) == 2
    assert sum("the run log cannot be written" in record.getMessage() for record in caplog.records) == 1


def test_a_folder_of_run_logs_that_is_removed_is_made_again(tmp_path: Path) -> None:
    made = chain("pipeline", log_dir=tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs")

    ask(made, "hi")

    assert events(tmp_path / "logs")[0] == "process_input_start"
