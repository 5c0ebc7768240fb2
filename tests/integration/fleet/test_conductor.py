"""Diskurs folders: conductors and their agents, through real workers and a scripted model server over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.config import loading
from cantata.errors import ConfigError
from cantata.flows.definitions import Limits
from cantata.surfaces.chat import ChatBackend
from cantata.testing import ScriptedModels
from cantata_workers.frontends.diskurs.conversation_state import ConversationState
from tests.integration.fleet.diskurs_folders import JUDGED, PARALLEL, PLANNED, SEQUENCE, TOOLS
from tests.integration.fleet.diskurs_stage import CONCEPTS, PATIENCE_S, Stage
from tests.waiting import until

TO_HELPER = {"next_agent": "helper"}
EXTRACTED = {"name": "Jo", "topic": "firewall", "user_question": "Why is port 80 closed?", "answer": ""}
ANSWERED = {"answer": "Because a rule of the firewall drops it."}


@pytest.fixture
def stage(client: EmbeddedClient, models: ScriptedModels, tmp_path: Path) -> Iterator[Stage]:
    with Stage(client.redis_url, models, tmp_path / "folder") as stage:
        yield stage


# --- the concepts page ----------------------------------------------------------------------------------------------


def test_the_agent_of_the_concepts_page_answers_in_three_model_calls(stage: Stage) -> None:
    stage.write(CONCEPTS)
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask("I am Jo. Why is port 80 closed on our firewall?")

    assert (result.status, result.error) == ("succeeded", None)
    assert result.output == {"answer": ANSWERED["answer"], "topic": "firewall"}
    assert result.usage.model_calls == 3
    route, extract, answer = stage.asked()
    assert "next_agent" in route
    assert "Extract all the following entities" in extract
    assert "The user's name is Jo." in answer
    assert "Answer the user's question" in answer


def test_a_bad_topic_costs_one_call_more_with_the_corrective_message(stage: Stage) -> None:
    stage.write(CONCEPTS)
    stage.script(TO_HELPER, {**EXTRACTED, "topic": "cooking"}, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert (result.status, result.usage.model_calls) == ("succeeded", 4)
    assert stage.asked()[2] == "Please assign a valid topic. Valid topics are: ['firewall', 'proxy', 'connectivity']"
    verdicts = [step.info["verdict"] for step in stage.steps(result.run_id, "diskurs.read")]
    assert verdicts == ["final", "correction", "step", "final"]
    told = "agent 'helper' is asked again, because its reply is not valid: Please assign a valid topic."
    assert [warning.startswith(told) for warning in result.warnings] == [True]
    assert "tool_failed" not in stage.log_events(result.run_id)


def test_each_hand_off_and_reply_is_a_step(stage: Stage) -> None:
    stage.write(CONCEPTS)
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert list(stage.record(result.run_id).steps) == [
        "@start",
        "@open",
        "1.conductor",
        "1.conductor/ask.1",
        "1.conductor/read.1",
        "2.helper",
        "2.helper/ask.1",
        "2.helper/read.1",
        "2.helper/ask.2",
        "2.helper/read.2",
        "3.conductor",
        "3.conductor/finalize",
    ]
    assert result.agents == ["helper"]


def test_the_system_prompt_has_its_arguments_and_the_form_of_the_reply(stage: Stage) -> None:
    stage.write(CONCEPTS)
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    stage.ask("Why?")

    route, extract, _ = (line["body"]["messages"] for line in stage.requests())
    assert "- helper: Answers questions about networks." in route[0]["content"]
    assert '"next_agent": ""' in route[0]["content"]
    assert "expert in the area of Cybersecurity" in extract[0]["content"]
    assert '"user_question": ""' in extract[0]["content"]
    assert [message["content"] for message in extract[1:2]] == ["Why?"]
    assert not any("next_agent" in message["content"] for message in extract)  # what conductors say, conductors see


def test_an_agent_that_is_not_free_to_be_chosen_is_told_to_the_model(stage: Stage) -> None:
    stage.write(CONCEPTS)
    stage.script({"next_agent": "cook"}, TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert result.status == "succeeded"
    assert stage.asked()[1] == "cook cannot be routed to from this agent. Valid agents are: ['helper']"


def test_no_agent_of_a_folder_is_addressed_in_a_chat(stage: Stage) -> None:
    stage.write(CONCEPTS)
    with (
        Client(stage.url, config=loading.load(stage.folder / "config.yml")) as client,
        pytest.raises(
            ConfigError, match="no agent can be named here: with this configuration, a turn starts at 'conductor'"
        ),
    ):
        ChatBackend(client).submit("hello", agent="helper")


# --- bounds ---------------------------------------------------------------------------------------------------------


def changed(old: str, new: str) -> str:
    text = CONCEPTS["config.yml"]
    assert old in text
    return text.replace(old, new)


def test_trials_that_are_used_up_reach_the_conductors_fail(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    type: multistep\n", "    type: multistep\n    maxTrials: 2\n"))
    stage.script(TO_HELPER, EXTRACTED, "what?", "no!")

    result = stage.ask()

    assert result.status == "exhausted"
    assert result.error is not None
    assert "No valid answer found after 2 trials." in result.error.message
    assert result.output == {
        "user_query": "hello",
        "topic": "firewall",
        "answer": "",
        "error": "Failed to finalize conversation",
    }
    assert result.usage.model_calls == 4


def test_reasoning_steps_that_are_used_up_reach_the_conductors_fail(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    type: multistep\n", "    type: multistep\n    maxReasoningSteps: 2\n"))
    stage.script(TO_HELPER, EXTRACTED, {"answer": "short"})

    result = stage.ask()

    assert (result.status, result.usage.model_calls) == ("exhausted", 3)
    assert result.error is not None
    assert result.error.message == "agent 'helper' was not final after 2 reasoning steps"
    (failed,) = stage.steps(result.run_id, "diskurs.fail")
    assert failed.info["arguments"] == {**EXTRACTED, "answer": "short"}


def test_trials_begin_anew_with_each_reasoning_step(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    type: multistep\n", "    type: multistep\n    maxTrials: 2\n"))
    stage.script(TO_HELPER, "what?", EXTRACTED, "what?", ANSWERED)
    assert stage.ask().status == "succeeded"


def test_max_dispatches_of_the_file_is_kept(stage: Stage) -> None:
    loading = changed("    topics: [helper]\n", "    topics: [helper]\n    maxDispatches: 2\n").replace(
        "can_finalize}", "never}"
    )
    stage.write(CONCEPTS, config=loading)
    code = CONCEPTS["agents/conductor/prompt.py"] + "\ndef never(memory):\n    return False\n"
    stage.write({"agents/conductor/prompt.py": code + "\ndef fail(memory):\n    return {'sorry': memory.topic}\n"})
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert (result.status, result.output) == ("exhausted", {"sorry": "firewall"})
    assert result.error is not None
    assert "maxDispatches" in result.error.message


# --- rules ----------------------------------------------------------------------------------------------------------

RULES = """
def broken(conversation):
    raise KeyError("x")

def no(conversation):
    return False

def urgent(conversation):
    return conversation.metadata.get("priority") == "high" and "hello" in conversation.longterm_memory.user_query
"""
ASKED = """    topics: [helper]
    rules:
      - {name: broken, location: agents/conductor, conditionName: broken, targetAgent: helper}
      - {name: "no", location: agents/conductor/rules.py, conditionName: "no", targetAgent: helper}
      - {name: urgent, conditionName: urgent, targetAgent: helper}
"""


def test_the_first_rule_that_holds_chooses_without_a_model(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    topics: [helper]\n", ASKED))
    stage.write({"agents/conductor/rules.py": RULES})
    stage.script(EXTRACTED, ANSWERED)

    result = stage.ask(labels={"priority": "high"})

    assert (result.status, result.usage.model_calls) == ("succeeded", 2)
    assert result.warnings == [
        "rule 'broken' of conductor 'conductor' is skipped: agents/conductor/rules.py:broken raised KeyError: 'x'"
    ]
    (chosen,) = stage.steps(result.run_id, "diskurs.rules")
    assert (chosen.info["rule"], chosen.info["chosen_agent"]) == ("urgent", "helper")


def test_where_no_rule_holds_the_model_chooses(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    topics: [helper]\n", ASKED))
    stage.write({"agents/conductor/rules.py": RULES})
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)
    assert stage.ask().usage.model_calls == 3


def test_without_a_model_to_ask_nobody_is_chosen(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("    topics: [helper]\n", ASKED + "    fallbackToLlm: false\n"))
    stage.write({"agents/conductor/rules.py": RULES})

    result = stage.ask()

    assert (result.status, result.usage.model_calls) == ("failed", 0)
    assert result.error is not None
    assert result.error.code == "no_agent"
    assert result.output == {
        "user_query": "hello",
        "topic": "",
        "answer": "",
        "error": "Failed to finalize conversation",
    }


# --- sessions -------------------------------------------------------------------------------------------------------


def test_the_next_turn_of_a_session_goes_on_with_the_memory_and_what_was_said(stage: Stage) -> None:
    stage.write(CONCEPTS)
    code = CONCEPTS["agents/conductor/prompt.py"].replace('    answer: str = ""', '    answer: PerTurnField[str] = ""')
    stage.write(
        {"agents/conductor/prompt.py": code.replace("import LongtermMemory", "import LongtermMemory, PerTurnField")}
    )
    stage.script(
        TO_HELPER,
        EXTRACTED,
        ANSWERED,
        TO_HELPER,
        {"name": "Jo", "user_question": "again", "answer": "It is still dropped."},
    )
    stage.ask("first", session=stage.folder.parent.name)

    result = stage.ask("second", session=stage.folder.parent.name)

    assert result.output == {"answer": "It is still dropped.", "topic": "firewall"}
    told = [message["content"] for message in stage.requests()[3]["body"]["messages"]]
    assert "first" in told
    assert "second" in told
    assert any(ANSWERED["answer"] in text for text in told)


def test_a_fork_of_a_turn_is_not_kept_in_its_session(stage: Stage) -> None:
    stage.write(CONCEPTS)
    session = stage.folder.parent.name
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)
    first = stage.submit("first", session=session)
    first.result(40)
    with Client(stage.url) as client:
        bank = client.memory.of(session=session)
        bank.clear_memories("diskurs")

        assert (
            client.fork(first.run_id, stage.steps(first.run_id, "diskurs.finalize")[0].step_id).result(40).status
            == "succeeded"
        )

        assert bank.list_memories("diskurs") == []


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_folder_of_the_page_runs(stage: Stage) -> None:
    page = (Path(__file__).parents[3] / "docs" / "conductor.md").read_text("utf-8")
    files = dict(re.findall(r"^`helpline/(\S+)`:\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert len(files) == 7
    stage.write(files)
    called = {"tool_calls": [{"name": "port_of", "arguments": {"protocol": "http"}}]}
    stage.script({"topic": "cooking"}, {"topic": "firewall"}, called, {"answer": "A rule drops port 80."})

    result = stage.ask("Why is port 80 closed on our firewall?")

    assert (result.status, result.output) == ("succeeded", {"answer": "A rule drops port 80.", "topic": "firewall"})
    assert result.usage.model_calls == 4
    (chosen,) = stage.steps(result.run_id, "diskurs.rules")
    assert chosen.info["rule"] == "firewalls"
    assert stage.requests()[3]["body"]["messages"][-1]["content"] == "80"


# --- tools ----------------------------------------------------------------------------------------------------------


def test_tools_have_factories_dependencies_and_hidden_parameters(stage: Stage) -> None:
    stage.write(TOOLS)
    calls = [{"name": "price", "arguments": {"name": "pen", "pieces": 2}}, {"name": "whoami", "arguments": {}}]
    stage.script({"next_agent": "clerk"}, {"tool_calls": calls}, {"answer": "Six."})

    result = stage.ask("two pens", labels={"hidden": "Ann"})

    assert (result.status, result.output) == ("succeeded", {"answer": "Six.", "topic": ""})
    assert (result.usage.model_calls, result.usage.tool_calls) == (3, 2)
    body = stage.requests()[1]["body"]
    assert body["tools"][0]["function"]["parameters"]["properties"] == {
        "name": {"type": "string", "description": "what is sold"},
        "pieces": {"type": "integer", "description": "how many"},
    }
    assert body["messages"][0]["content"] == 'You sell for Corner.\n\nAnswer like {"answer": ""}'
    told = [message["content"] for message in stage.requests()[2]["body"]["messages"] if message["role"] == "tool"]
    assert told == ["6 EUR for Ann", '{"name":"Ann"}']


def test_a_tool_that_fails_is_told_to_the_model_and_costs_no_trial(stage: Stage) -> None:
    stage.write(TOOLS, config=TOOLS["config.yml"].replace("    locked_fields", "    max_trials: 1\n    locked_fields"))
    first = {
        "tool_calls": [
            {"name": "price", "arguments": {"name": "ink", "pieces": 2}},
            {"name": "price", "arguments": {"name": "pen"}},
        ]
    }
    stage.script(
        {"next_agent": "clerk"}, first, {"tool_calls": [{"name": "nothing", "arguments": {}}]}, {"answer": "None."}
    )

    result = stage.ask("ink")

    assert result.status == "succeeded"
    told = [each["content"] for each in stage.requests()[3]["body"]["messages"] if each["role"] == "tool"]
    assert told == [
        "ERROR: Tool 'price' execution failed: 'ink'. Please correct your input and try again.",
        "ERROR: Tool 'price' execution failed: missing argument 'pieces'. Please correct your input and try again.",
        "Tool function 'nothing' is not available. There are 'price', 'whoami'.",
    ]
    assert "tool_failed" in stage.log_events(result.run_id)


# --- the other kinds of agents --------------------------------------------------------------------------------------


def test_a_conductor_of_conductors_with_a_predicate_and_a_finalizer(stage: Stage) -> None:
    stage.write(JUDGED)
    stage.script(
        {"next_agent": "lower"},
        {"can_finalize": False},
        TO_HELPER,
        {**EXTRACTED, **ANSWERED},
        {"can_finalize": True},
        {"letter": "Dear Jo"},
    )

    result = stage.ask()

    assert (result.status, result.output) == ("succeeded", {"letter": "Dear Jo", "topic": "firewall"})
    assert result.agents == ["judge", "helper", "writer"]
    assert "lower: Directs those who know things." in stage.requests()[0]["body"]["messages"][0]["content"]
    assert stage.asked()[4] == f"Is this an answer: {ANSWERED['answer']}"
    assert stage.asked()[5] == f"Write about firewall: {ANSWERED['answer']}"
    visits = [
        ConversationState.model_validate(step.output).dispatches for step in stage.steps(result.run_id, "diskurs.visit")
    ]
    assert visits[-2:] == [{"upper": 1, "lower": 0}, {"upper": 0, "lower": 0}]


def test_a_parallel_agent_splits_and_joins_and_a_sequence_makes_the_result(stage: Stage) -> None:
    stage.write(PARALLEL)
    pages = [{"match": f"^Read {name}$", "reply": json.dumps({"text": f"about {name}"})} for name in ("a", "b", "c")]
    stage.script({"urls": ["a", "b", "c"]}, *pages)

    result = stage.ask("read")

    assert (result.status, result.output) == ("succeeded", {"notes": ["ABOUT A", "ABOUT B", "ABOUT C"]})
    assert sorted(stage.asked()) == ["Read a", "Read b", "Read c", "Which pages?"]
    assert result.agents == ["reader", "finisher"]


def test_after_the_join_the_model_may_be_asked_once_more(stage: Stage) -> None:
    loading = PARALLEL["config.yml"].replace(
        "    type: parallel_multistep\n", "    type: parallel_multistep\n    invokeOnFinal: true\n"
    )
    code = PARALLEL["agents/reader/parallelize.py"].replace(
        "parts.append(conversation.", 'parts.append(conversation.append(f"Page {url}.", role="assistant").'
    )
    stage.write({**PARALLEL, "agents/reader/parallelize.py": code}, config=loading)
    pages = [{"match": f"^Read {name}$", "reply": json.dumps({"text": name})} for name in ("a", "b")]
    stage.script({"urls": ["a", "b"]}, *pages, {"text": "all"})

    result = stage.ask("read")

    assert (result.status, result.usage.model_calls) == ("succeeded", 4)
    said = [
        [message["content"] for message in each["body"]["messages"]]
        for each in stage.requests()
        if each["text"].startswith("Read ")
    ]
    assert sorted(text for texts in said for text in texts if text.startswith("Page")) == ["Page a.", "Page b."]


def test_a_sequence_asks_its_model_and_hands_over_to_its_conductor(stage: Stage) -> None:
    stage.write(SEQUENCE)
    stage.script({"next_agent": "desk"}, "All is well.")

    result = stage.ask("a long story", labels={"desk": "3"})

    assert (result.status, result.output) == ("succeeded", {"answer": "All is well.", "topic": "3"})
    assert stage.asked()[1] == "Sum up: a long story"
    assert result.usage.model_calls == 2
    (sequence,) = stage.steps(result.run_id, "diskurs.heuristic")
    said = ConversationState.model_validate(sequence.output).utterances
    assert [each.text for each in said] == ["Sum up: a long story", "All is well.", "Noted: All is well."]
    assert result.agents == ["desk"]


def test_a_sequence_sets_prompts_of_its_own_and_metadata_of_a_call(stage: Stage) -> None:
    begin = "async def heuristic_sequence"
    code, _ = SEQUENCE["agents/desk/prompt.py"].split(begin)
    own = f"""
from diskurs import ChatMessage, Role

{begin}(conversation, call_tool, llm_client):
    prompts = dict(system_prompt=ChatMessage(Role.SYSTEM, "Be brief."), user_prompt=ChatMessage(Role.USER, "Sum up."))
    asked = await llm_client.generate(conversation.update(**prompts))
    argument = conversation.prompt_argument
    argument.answer = await call_tool("whoami", {{}}, metadata={{"hidden": asked.last_message.content}})
    return conversation.update(prompt_argument=argument)
"""
    whoami = TOOLS["tools/desk_tools.py"].replace('return {"name": hidden}', "return hidden")
    config_yml = (
        SEQUENCE["config.yml"] + "tools: [{name: whoami, functionName: whoami, modulePath: tools/desk_tools.py}]\n"
    )
    stage.write({**SEQUENCE, "tools/desk_tools.py": whoami, "agents/desk/prompt.py": code + own}, config=config_yml)
    stage.script({"next_agent": "desk"}, "Ann")

    assert stage.ask("a long story", labels={"hidden": "nobody"}).output == {"answer": "Ann", "topic": ""}
    messages = [(each["role"], each["content"]) for each in stage.requests()[1]["body"]["messages"]]
    assert messages == [("system", "Be brief."), ("user", "a long story"), ("user", "Sum up.")]


def test_a_sync_sequence_waits_for_tools_and_its_model(stage: Stage) -> None:
    begin = "async def heuristic_sequence"
    code, _ = SEQUENCE["agents/desk/prompt.py"].split(begin)
    sync = """def heuristic_sequence(prompt_argument, call_tool, conversation, llm_client):
    told = llm_client.generate(conversation.append("Sum up"))
    prompt_argument.answer = call_tool(function_name="shout", arguments={"text": told.last_message.content})
    return prompt_argument
"""
    tools = "tools: [{name: shout, functionName: shout, modulePath: tools/shout.py}]\n"
    config_yml = SEQUENCE["config.yml"] + tools
    stage.write(
        {**SEQUENCE, "tools/shout.py": PARALLEL["tools/shout.py"], "agents/desk/prompt.py": code + sync},
        config=config_yml,
    )
    stage.script({"next_agent": "desk"}, "all is well")

    assert stage.ask().output == {"answer": "ALL IS WELL", "topic": ""}


# --- what the file says of fields -----------------------------------------------------------------------------------


def test_no_reply_changes_a_field_that_the_file_locks(stage: Stage) -> None:
    stage.write(
        CONCEPTS, config=changed("    type: multistep\n", "    type: multistep\n    lockedFields: {name: Ann}\n")
    )
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert "The user's name is Ann." in stage.asked()[2]
    assert '"name"' not in stage.requests()[1]["body"]["messages"][0]["content"]
    assert not [
        step for step in stage.record(result.run_id).steps.values() if "step" in step.info
    ]  # which is the id, where both are told


def test_a_template_that_does_not_end_is_stopped_and_its_worker_goes_on(stage: Stage) -> None:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    stage.write({**CONCEPTS, "agents/helper/system_prompt.jinja2": forever})
    stage.script(TO_HELPER, TO_HELPER)
    impatient = loading.load(stage.folder / "config.yml").model_copy(update={"limits": Limits(render_s=0.5)})

    with Client(stage.url, config=impatient) as client:
        result = client.submit_turn("hello").result(PATIENCE_S)
    stage.write(CONCEPTS)
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    assert result.status == "failed"
    assert result.error is not None
    assert (
        "the system prompt of agent 'helper': its template (limits.render_s) took longer than 0.5 s and was stopped"
        in result.error.message
    )
    assert stage.ask().status == "succeeded"


def test_a_field_that_is_not_there_is_told_before_a_model_is_asked(stage: Stage) -> None:
    computed = CONCEPTS["agents/helper/prompt.py"].replace(
        "FirstUserPromptArgument(PromptArgument)", "FirstUserPromptArgument(*[PromptArgument])"
    )
    config_yml = changed("    type: multistep\n", "    type: multistep\n    lockedFields: {nam: Ann}\n")
    stage.write({**CONCEPTS, "agents/helper/prompt.py": computed}, config=config_yml)

    result = stage.ask()

    assert (result.status, stage.asked()) == ("failed", [])
    assert result.error is not None
    assert (
        "lockedFields of agent 'helper' names 'nam', which is no field of FirstUserPromptArgument; did you mean 'name'?"
        in result.error.message
    )


def test_a_name_that_is_not_defined_renders_as_nothing_with_a_warning(stage: Stage) -> None:
    stage.write({**CONCEPTS, "agents/helper/system_prompt.jinja2": "You know {{ topik }}."})
    stage.script(TO_HELPER, EXTRACTED, ANSWERED)

    result = stage.ask()

    assert result.status == "succeeded"
    assert stage.requests()[1]["body"]["messages"][0]["content"].startswith("You know .")
    assert result.warnings == [
        "the system prompt of agent 'helper' uses 'topik', which is not defined and renders as nothing"
    ]


def test_where_a_named_function_is_missing_diskurs_default_decides(stage: Stage) -> None:
    stage.write(CONCEPTS, config=changed("isFinalName: is_final", "isFinalName: over"))
    stage.script(TO_HELPER, {**EXTRACTED, "answer": "short"})

    assert stage.ask().output == {"answer": "short", "topic": "firewall"}


def test_a_part_that_is_exhausted_exhausts_the_agent(stage: Stage) -> None:
    stage.write(
        PARALLEL,
        config=PARALLEL["config.yml"].replace(
            "    location: agents/reader\n", "    location: agents/reader\n    maxTrials: 1\n"
        ),
    )
    stage.script(
        {"urls": ["a", "b"]}, {"match": "^Read a$", "reply": "?"}, {"match": "^Read b$", "reply": '{"text": "b"}'}
    )

    result = stage.ask("read")

    assert result.status == "exhausted"
    assert result.error is not None
    assert "No valid answer found after 1 trials." in result.error.message


def test_a_plan_runs_as_its_dependencies_allow(stage: Stage) -> None:
    stage.write(PLANNED)
    plan = [
        {"step_id": "1", "description": "", "function": "add", "parameters": {"a": 1, "b": 2}, "depends_on": []},
        {"step_id": "2", "description": "", "function": "add", "parameters": {"a": 3, "b": 4}, "depends_on": []},
        {
            "step_id": "3",
            "description": "",
            "function": "mul",
            "parameters": {"a": "$1", "b": "$2"},
            "depends_on": ["1"],
        },
    ]
    stage.script({"next_agent": "planner"}, {"execution_plan": plan}, {"answer": "21 it is", "execution_plan": []})

    result = stage.ask("(1+2)*(3+4)")

    assert (result.status, result.output) == ("succeeded", {"answer": "21 it is", "topic": ""})
    assert result.usage.tool_calls == 3
    assert "- 3 (mul): completed: 21" in stage.asked()[2]


def test_a_plan_that_cannot_be_carried_out_is_refused_and_a_failed_step_fails_those_that_need_it(stage: Stage) -> None:
    stage.write(PLANNED)
    circle = [
        {"step_id": "1", "function": "add", "parameters": {"a": "$2", "b": 1}},
        {"step_id": "2", "function": "add", "depends_on": ["1"]},
    ]
    failing = [
        {"step_id": "1", "function": "mul", "parameters": {"a": 1, "b": 0}},
        {"step_id": "2", "function": "add", "parameters": {"a": "$1", "b": 1}},
    ]  # fmt: skip
    better = [{"step_id": "1", "function": "add", "parameters": {"a": 1, "b": 1}}]
    stage.script(
        {"next_agent": "planner"},
        {"execution_plan": circle},
        {"execution_plan": failing},
        {"replan": True, "replan_explanation": "zero", "execution_plan": better},
        {"answer": "two"},
    )

    result = stage.ask("sum")

    assert result.status == "succeeded"
    asked = stage.asked()
    assert "these steps wait for each other: 1, 2" in asked[2]
    assert "- 1 (mul): failed: ERROR: Tool 'mul' execution failed: no zeros." in asked[3]
    assert "- 2 (add): failed: ERROR: Tool 'add' execution failed: step '1', which it depends on, failed." in asked[3]
    assert "- 1 (add): completed: 2" in asked[4]


# --- kill -9 --------------------------------------------------------------------------------------------------------


SLOW_READING = """
def is_final(arg):
    import os, pathlib, time
    mark = pathlib.Path(__file__).with_name("pid")
    if arg.answer and not mark.exists():
        mark.write_text(str(os.getpid()))
        time.sleep(30)
    return bool(arg.answer)
"""


@pytest.mark.thorough("a killed worker repeats nothing finished: held by fleet/test_kills.py")
@pytest.mark.slow("a worker is killed, and its leases must run out")
def test_workers_killed_in_the_middle_repeat_no_finished_step(
    victim: EmbeddedClient, models: ScriptedModels, tmp_path: Path
) -> None:
    with Stage(victim.redis_url, models, tmp_path / "folder") as stage:
        stage.write({**CONCEPTS, "agents/helper/prompt.py": CONCEPTS["agents/helper/prompt.py"] + SLOW_READING})
        stage.script(TO_HELPER, {"reply": json.dumps(EXTRACTED), "delay_s": 30}, EXTRACTED, ANSWERED)
        run = stage.submit()

        until(lambda: len(stage.requests()) == 2, "the second model call")
        os.kill(int(stage.record(run.run_id).steps["2.helper/ask.1"].worker.rpartition("#")[2]), signal.SIGKILL)
        mark = stage.folder / "agents/helper/pid"
        os.kill(int(until(lambda: mark.exists() and mark.read_text(), "the reading of the answer")), signal.SIGKILL)

        result = run.result(60)
        assert (result.status, result.output) == ("succeeded", {"answer": ANSWERED["answer"], "topic": "firewall"})
        again = {name for name, step in stage.record(run.run_id).steps.items() if step.attempt > 1}
        assert again == {"2.helper/ask.1", "2.helper/read.2"}
        assert len(stage.requests()) == 4  # only the call that was under way is made again
