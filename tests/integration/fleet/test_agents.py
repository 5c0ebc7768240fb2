"""What an agent is told to do, one after the other: every kind of instruction, models, chainbreakers, what is kept of the steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cantata.client.client import EmbeddedClient
from cantata.flows.definitions import Agent, Model, Synthesizer, Team
from cantata.flows.events import ChainBroken
from tests.integration.fleet.agent_stage import MAIN, OTHER, PATIENCE_S, AgentStage, agent, call

WORDS = {"function": "agent_tools:shout"}


# Instructions


@pytest.mark.parametrize(
    ("instruction", "prompts", "output"),
    [
        ("say {input}", ["say\n\ngo"], "said"),
        ("say <{input}> {other}", ["say <go> {other}"], "said"),
        (WORDS, [], "GO"),
        ({"function": "agent_tools:count"}, [], "2"),
        ({"function": "agent_tools:nothing"}, [], "out of nothing"),
        ({"function": "agent_tools:only_by_place"}, [], "<go>"),
        ({"function": "textwrap:dedent"}, [], "go"),
        ({"objective": "find {input}"}, ["go"], "said"),
        ({"agent": "other"}, ["other <go>"], "said"),
        ({"chain": "wrap"}, [], {"text": "go"}),
        (("say {input}", ["price"]), ["say\n\ngo"], "said"),
    ],
    ids=str,
)
def test_an_instruction_of_each_kind(stage: AgentStage, instruction: Any, prompts: list[str], output: Any) -> None:
    stage.script({"reply": "said"})

    result = stage.ask(agent(instructions=[instruction]), agents={"other": agent(instructions=["other <{input}>"])})

    assert (result.status, result.output, stage.prompts()) == ("succeeded", output, prompts), result.error


def test_instructions_of_all_kinds_in_a_row(stage: AgentStage) -> None:
    stage.script(
        {"match": "^one <go>$", "reply": "a"}, {"match": "^A$", "reply": "b"}, {"match": "^other <b>$", "reply": "c"}
    )
    row = ["one <{input}>", WORDS, {"objective": "turn it"}, {"agent": "other"}, {"chain": "wrap"}, "last <{input}>"]

    result = stage.ask(agent(instructions=row), agents={"other": agent(instructions=["other <{input}>"])})

    assert result.output == 'echo: last <{"text":"c"}>'
    assert (result.agents, result.usage.model_calls) == (["it"], 4)


def test_an_objective_stands_in_the_system_message_untouched_by_braces(stage: AgentStage) -> None:
    stage.ask(agent(system="You are {it}.", instructions=[{"objective": "find {input}"}]))

    (sent, asked) = stage.messages()
    assert sent["content"].startswith("You are {it}.\n\nYour objective: find {input}\n\n")
    assert asked == {"role": "user", "content": "go"}


def test_an_instruction_without_input_does_not_use_it_and_a_warning_says_so_once(stage: AgentStage) -> None:
    stage.script({"after_tools": 0, "tool_calls": [call("price", item="tea")]})

    result = stage.ask(agent(instructions=["what is tea?"], tools=["price"]))

    assert stage.prompts() == ["what is tea?"] * 2
    assert result.warnings == ["instruction 1 of agent 'it' has no {input}, so its input is not used"]


def test_tools_of_a_text_stand_for_the_agents_and_an_empty_list_is_none(stage: AgentStage) -> None:
    stage.ask(agent(tools=["add"], instructions=["1 {input}", ("2 {input}", ["price"]), ("3 {input}", [])]))

    offered = [[tool["function"]["name"] for tool in request["body"].get("tools", ())] for request in stage.requests()]
    assert offered == [["add"], ["price"], []]


def test_a_function_that_raises_fails_the_run(stage: AgentStage) -> None:
    result = stage.ask(agent(instructions=[{"function": "agent_tools:broken"}, "then {input}"]))

    assert (result.status, result.output, stage.prompts()) == ("failed", None, [])
    assert result.error is not None
    assert result.error.message == "agent_tools:broken raised ValueError: no go"


# Models


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ([OTHER], [("gpt-4o", None), ("gpt-4o", None)]),
        ([OTHER, MAIN], [("gpt-4o", None), ("gpt-4o-mini", None)]),
        (["named", {"model": MAIN, "params": {"temperature": 0.5}}], [("gpt-4.1", 0.1), ("gpt-4o-mini", 0.5)]),
    ],
    ids=["one for all", "one for each", "with parameters"],
)
def test_models_are_one_for_all_texts_or_one_for_each(stage: AgentStage, named: list[Any], asked: list[Any]) -> None:
    known = {"named": Model(model="openai/gpt-4.1", params={"temperature": 0.1})}

    stage.ask(agent(model=None, models=named, instructions=["1 {input}", WORDS, "2 {input}"]), models=known)

    assert [(request["model"], request["body"].get("temperature")) for request in stage.requests()] == asked


def test_an_agentic_step_has_a_model_and_parameters_of_its_own(stage: AgentStage) -> None:
    step = {"objective": "find", "model_name": OTHER, "model_params": {"temperature": 0.7}}

    stage.ask(agent(params={"temperature": 0.1, "top_p": 0.5}, instructions=["first {input}", step]))

    asked = [
        (request["model"], request["body"]["temperature"], request["body"]["top_p"]) for request in stage.requests()
    ]
    assert asked == [("gpt-4o-mini", 0.1, 0.5), ("gpt-4o", 0.7, 0.5)]


# Chainbreakers


def broken_by(*breakers: str, **fields: Any) -> Agent:
    named = [f"agent_tools:{name}" for name in breakers]
    return agent(instructions=["1 <{input}>", WORDS, "3 <{input}>"], chainbreakers=named, store_steps=True, **fields)


def test_a_chainbreaker_ends_the_row_with_what_there_is(stage: AgentStage) -> None:
    stage.script({"reply": "said"})

    result = stage.ask(broken_by("never", "second"))

    assert (result.status, result.output, stage.prompts()) == ("succeeded", "SAID", ["1 <go>"])
    assert list(result.steps) == ["step_0", "step_1", "step_2"]


def test_the_output_of_a_chainbreaker_stands_for_the_steps_and_the_original_is_in_the_event(stage: AgentStage) -> None:
    stage.script({"reply": "said"})

    run = stage.start(broken_by("second_with_words", "second"))
    result = run.result(PATIENCE_S)

    assert result.output == "2 function Function: shout SAID"
    assert result.steps["step_2"] == {"type": "function", "output": result.output}
    (broken,) = [event for event in run.log() if isinstance(event, ChainBroken)]
    assert (broken.breaker, broken.reason, broken.original) == ("agent_tools:second_with_words", "enough", "SAID")


def test_chainbreakers_that_cannot_be_asked_or_understood_are_left_out_with_a_warning(stage: AgentStage) -> None:
    stage.script({"reply": "said"})

    result = stage.ask(broken_by("of_one", "raising", "malformed"))

    assert (result.status, len(result.steps)) == ("succeeded", 4)
    for said in ("of_one takes 1 arguments", "raising is ignored: KeyError: 'gone'", "malformed is ignored"):
        assert sum(said in warning for warning in result.warnings) == 3, said


def test_a_chainbreaker_that_cannot_be_imported_fails_the_run(stage: AgentStage) -> None:
    result = stage.ask(broken_by("never", "missing"))

    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "tool_import")
    assert result.error.message == "module 'agent_tools' has no function 'missing'"


def test_functions_get_their_own_arguments_first(stage: AgentStage) -> None:
    quote = {"function": "agent_tools:quote", "args": ["'"], "kwargs": {"end": "!"}}
    breaker = {"function": "agent_tools:after", "args": [2]}

    run = stage.start(agent(instructions=[quote, quote, quote], chainbreakers=[breaker]))

    assert run.result(PATIENCE_S).output == "''go'!'!"
    (broken,) = [event for event in run.log() if isinstance(event, ChainBroken)]
    assert (broken.breaker, broken.reason) == ("agent_tools:after", "2 are enough")


def test_functions_get_the_context_of_their_step_if_they_take_one(stage: AgentStage, client: EmbeddedClient) -> None:
    remember = {"function": "agent_tools:remember"}

    run = stage.start(agent(instructions=[remember] * 4, chainbreakers=["agent_tools:third_time"]))

    assert run.result(PATIENCE_S).output == "[1, 2, 3]"
    assert client.memory.retrieve_memory("seen", run.run_id) == "go"


# What is kept


def test_store_steps_keeps_the_input_and_what_each_instruction_gave(stage: AgentStage) -> None:
    stage.script({"match": "^1", "reply": "said"}, {"reply": "done"})
    row = ["1 {input}", WORDS, {"objective": "end it"}]

    result = stage.ask(
        agent(model=None, models=[{"model": MAIN, "params": {"temperature": 0}}], instructions=row, store_steps=True)
    )

    assert result.output == "done"
    assert result.steps == {
        "step_0": {"type": "initial", "output": "go"},
        "step_1": {"type": "model", "output": "said", "model_params": {"temperature": 0}},
        "step_2": {"type": "function", "output": "SAID"},
        "step_3": {"type": "agentic_step", "output": "done"},
    }
    assert result.agentic is not None, "what the last step tells of itself is not lost"


def test_full_history_is_the_answer_and_models_see_the_earlier_turns(stage: AgentStage) -> None:
    stage.script({"match": "^1", "reply": "said"}, {"reply": "done"})

    result = stage.ask(agent(instructions=["1 <{input}>", WORDS, "3 <{input}>"], full_history=True))

    assert result.output == result.history
    visible = [(entry["step"], entry["type"], entry["input"], entry["output"]) for entry in result.history]  # type: ignore[index,call-overload]
    assert visible == [
        (0, "initial", "go", "go"),
        (1, "model", "go", "said"),
        (2, "function", "Function: shout", "SAID"),
        (3, "model", "SAID", "done"),
    ]
    assert stage.messages() == [
        {"role": "user", "content": "1 <go>"},
        {"role": "assistant", "content": "said"},
        {"role": "user", "content": "3 <SAID>"},
    ]


def test_without_it_models_see_no_earlier_turns(stage: AgentStage) -> None:
    stage.ask(agent(instructions=["1 {input}", "2 {input}"]))

    assert stage.messages() == [{"role": "user", "content": "2\n\necho: 1\n\ngo"}]


# Around an agent: it is one step

CALLS = {"after_tools": 0, "match": "^ask", "tool_calls": [call("price", item="tea"), call("fail")]}
SHOPPER = agent(instructions=["ask <{input}>"], tools=["price", "fail"])
PLAIN = agent(instructions=["then <{input}>"])


def test_an_agent_with_tools_in_a_pipeline(stage: AgentStage) -> None:
    stage.script(CALLS, {"match": "^ask", "reply": "tea"})

    client = stage.client(
        SHOPPER, agents={"then": PLAIN}, teams={"row": Team(mode="pipeline", agents=["then", "it", "then"])}
    )
    result = client.submit_turn("go", team="row").result(PATIENCE_S)

    assert (result.output, result.agents) == ("echo: then <tea>", ["then", "it"])
    assert stage.results(2)[1] == {"error": "fleet_tools:fail raised RuntimeError: no luck"}, (
        "the model is told nothing of the pipeline"
    )


def test_an_agent_that_fails_after_its_tools_fails_the_pipeline_where_it_stands(stage: AgentStage) -> None:
    stage.script(CALLS, {"match": "^ask", "status": 400})

    client = stage.client(
        SHOPPER, agents={"then": PLAIN}, teams={"row": Team(mode="pipeline", agents=["then", "it", "then"])}
    )
    result = client.submit_turn("go", team="row").result(PATIENCE_S)

    assert result.status == "failed"
    assert result.error is not None
    assert result.error.message.startswith("Pipeline failed at step 2 (it): ")


def test_an_agent_with_tools_in_a_broadcast_in_which_another_fails_after_its_tools(stage: AgentStage) -> None:
    stage.script(
        CALLS,
        {"match": "^ask <bad>", "status": 400},
        {"match": "^ask", "reply": "tea"},
        {"match": "^merge", "reply": "merged"},
    )
    team = Team(
        mode="broadcast", agents=["it", "bad"], synthesizer=Synthesizer(model=MAIN, prompt="merge {agent_responses}")
    )
    bad = SHOPPER.model_copy(update={"instructions": ["ask <bad> {input}"]})

    result = (
        stage.client(SHOPPER, agents={"bad": bad}, teams={"both": team})
        .submit_turn("go", team="both")
        .result(PATIENCE_S)
    )

    assert result.output == "merged"
    merge = json.loads(stage.prompts()[-1].removeprefix("merge").strip())
    assert list(merge) == ["it", "bad"]
    assert merge["it"] == "tea"
    assert merge["bad"].startswith("Error: ")


def test_an_agent_with_tools_as_a_node_of_a_chain_is_one_node(stage: AgentStage) -> None:
    stage.script(CALLS, {"match": "^ask", "reply": "tea"})
    nodes = [
        {"node_id": "shop", "kind": "agent", "name": "it", "input": {"text": "go"}, "next_node": "show"},
        {"node_id": "show", "kind": "tool", "name": "echo", "input_map": {"got": "shop"}},
    ]

    run = stage.client(SHOPPER).submit_chain({"nodes": nodes, "entry_node": "shop"})
    response = run.result(PATIENCE_S)

    assert (response.success, response.final_output, response.nodes_run, response.failed) == (
        True,
        {"got": "tea"},
        2,
        [],
    )
    assert response.outputs == {"shop": "tea", "show": {"got": "tea"}}
    sent = [(event.node_id, event.phase, event.output) for event in run.events()]
    assert sent == [
        ("shop", "start", None),
        ("shop", "done", "tea"),
        ("show", "start", None),
        ("show", "done", {"got": "tea"}),
    ]


def test_an_agent_that_fails_after_its_tools_is_a_failed_node(stage: AgentStage) -> None:
    stage.script(CALLS, {"match": "^ask", "status": 400})
    nodes = [
        {
            "node_id": "shop",
            "kind": "agent",
            "name": "it",
            "input": {"text": "go"},
            "on_error": "skip",
            "next_node": "show",
        },
        {"node_id": "show", "kind": "tool", "name": "echo", "input_map": {"got": "shop"}},
    ]

    run = stage.client(SHOPPER).submit_chain({"nodes": nodes, "entry_node": "shop"})
    response = run.result(PATIENCE_S)

    assert (response.status, response.success, response.final_output, response.failed) == (
        "succeeded",
        False,
        {"got": None},
        ["shop"],
    )
    assert [(event.node_id, event.phase) for event in run.events()][:2] == [("shop", "start"), ("shop", "error")]


def test_agents_with_tools_as_items_of_a_map(stage: AgentStage) -> None:
    stage.script(CALLS, {"match": "^ask <1>", "reply": "one"}, {"match": "^ask <2>", "reply": "two"})
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "each"},
        {"node_id": "each", "kind": "agent", "name": "it", "input_map": {"text": "_item"}},
    ]

    response = (
        stage.client(SHOPPER)
        .submit_chain({"nodes": nodes, "entry_node": "all", "initial_input": {"items": [1, 2]}})
        .result(40)
    )

    assert (response.outputs["all"], response.items_run) == (["one", "two"], 2)
