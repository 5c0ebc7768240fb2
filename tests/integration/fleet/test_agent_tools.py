"""The rounds of an agent: tools its model calls, natively and in JSON, what comes back, and the bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from cantata.flows.definitions import Tool
from tests.integration.fleet.agent_stage import PATIENCE_S, AgentStage, Json, agent, call

CUT = "[cut here: these are the first 20,000 of 5,000,000 characters]"


def calls(*asked: Json, after: int = 0, **fields: Any) -> Json:
    """A rule: the model calls these tools, once it has so many results."""
    return {"after_tools": after, "tool_calls": list(asked), **fields}


def said(*replies: Any) -> list[Json]:
    """Rules: these replies, one after the other."""
    return [{"reply": reply, "times": 1} for reply in replies]


# Calls


def test_calls_of_one_reply_run_at_once_and_are_answered_in_order_under_their_own_ids(
    stage: AgentStage, tmp_path: Path
) -> None:
    meetings = [
        call("meet", f"id-{mark}", folder=str(tmp_path), mark=mark, others=[other]) for mark, other in ("ab", "ba")
    ]
    stage.script(calls(*meetings), {"reply": "they met"})

    result = stage.ask(agent(tools=["meet"]))

    expected = [
        (message["tool_call_id"], message["content"]) for message in stage.messages() if message["role"] == "tool"
    ]
    assert (result.output, expected) == ("they met", [("id-a", "met b"), ("id-b", "met a")])
    assert (result.usage.model_calls, result.usage.tool_calls) == (2, 2)


def test_a_quick_function_and_the_next_round_are_executed_where_the_model_was_called(stage: AgentStage) -> None:
    tools = {
        "quick": Tool(function="agent_tools:price", cheap=True),
        "costly": Tool(function="agent_tools:price", cheap=False),
    }
    tools |= {"bounded": Tool(function="agent_tools:price", cheap=True, timeout_s=60.0)}
    stage.script(
        {"after_tools": 0, "tool_calls": [call("quick", item="tea")]},
        {"after_tools": 1, "tool_calls": [call("costly", item="tea")]},
        {"after_tools": 2, "tool_calls": [call("quick", item="tea"), call("quick", item="milk")]},
        {"after_tools": 4, "tool_calls": [call("bounded", item="tea")]},
        {"reply": "done"},
    )

    run = stage.start(agent(tools=["quick", "costly", "bounded"]), tools=tools)
    result = run.result(PATIENCE_S)
    workers = {event.step: str(event.worker) for event in run.log() if event.type == "started"}

    assert (result.output, [answer["total"] for answer in stage.results()]) == ("done", [2.5] * 5)
    assert workers["it/t0"] == workers["it/r1"] == workers["it"]
    assert [
        workers[step].partition("@")[0].partition(".")[0] for step in ("it/r1/t0", "it/r2/t0", "it/r2/t1", "it/r3/t0")
    ] == ["tools"] * 4


def test_the_error_of_a_call_is_sent_to_the_model(stage: AgentStage) -> None:
    wrong = [
        call("prise", item="tea"),
        {"name": "price", "arguments": '{"item": tea}'},
        {"name": "price", "arguments": "[1]"},
        call("price", count="many"),
        call(None, item="tea"),
        call("fail", message="out of tea"),
        call("hang", journal="/dev/null", mark=1, seconds=30),
        call("price", item="tea", count=2),
    ]
    stage.script(calls(*wrong), {"reply": "I tried"})

    result = stage.ask(agent(tools=["price", "fail", "hang"]))

    assert (result.status, result.output) == ("succeeded", "I tried")
    errors = [answer.get("error") for answer in stage.results()]
    assert errors[0] == "Tool function 'prise' is not available. Did you mean 'price'?"
    assert "not valid JSON" in errors[1]
    assert "must be a JSON object" in errors[2]
    assert "'item' is missing" in errors[3]
    assert '"description": "how many"' in errors[3], "the schema is told"
    assert errors[4] == "The call names no tool."
    assert errors[5] == "fleet_tools:fail raised RuntimeError: out of tea"
    assert "took longer than its 0.5 s" in errors[6]
    assert stage.results()[7] == {"item": "tea", "total": 5.0}
    assert len({message["tool_call_id"] for message in stage.messages() if message["role"] == "tool"}) == len(wrong)


def test_a_hundred_calls_of_one_reply(stage: AgentStage) -> None:
    stage.script(calls(*(call("add", a=number) for number in range(100))), {"reply": "counted"})

    result = stage.ask(agent(tools=["add"]))

    assert (result.output, stage.results()) == ("counted", [number + 1 for number in range(100)])


def test_a_large_result_is_cut_for_the_model_and_whole_in_the_record(stage: AgentStage) -> None:
    stage.script(calls(call("large", megabytes=5)), {"reply": "long"})

    run = stage.start(agent(tools=["large"]))

    assert run.result(PATIENCE_S).output == "long"
    (expected,) = stage.results()
    assert expected.endswith(CUT)
    assert len(expected) < 20_100
    assert run.record().steps["it/t0"].output == "x" * 5_000_000


def test_a_tool_named_by_a_model_that_was_offered_none_is_not_called(stage: AgentStage) -> None:
    stage.script(calls(call("price", item="tea"), reply="I would ask for the price"))

    result = stage.ask(agent(instructions=[("{input}", [])], tools=["price"]))

    assert (result.output, result.usage.tool_calls) == ("I would ask for the price", 0)


# Bounds


def test_after_the_last_round_of_tools_the_model_is_called_once_more_without_them(stage: AgentStage) -> None:
    stage.script({"match": "used all 2 rounds", "reply": "at last"}, {"tool_calls": [call("add", a=1)]})

    result = stage.ask(agent(tools=["add"], max_tool_rounds=2))

    assert (result.output, result.usage.tool_calls) == ("at last", 2)
    assert [request["body"].get("tool_choice") for request in stage.requests()] == [None, None, "none"]


@pytest.mark.parametrize(
    ("instruction", "said_of"),
    [("{input}", "1 rounds of tool calls"), ({"objective": "go on", "max_tool_rounds": 1}, "1 rounds of tool calls")],
    ids=["text", "agentic"],
)
def test_a_run_whose_model_calls_tools_for_ever_is_exhausted(stage: AgentStage, instruction: Any, said_of: str) -> None:
    stage.script({"tool_calls": [call("add", a=1)]})

    result = stage.ask(agent(tools=["add"], max_tool_rounds=1, instructions=[instruction]))

    assert (result.status, result.output, len(stage.requests())) == ("exhausted", None, 2)
    assert result.error is not None
    assert result.error.message == f"agent 'it' gave no answer within its {said_of}"


def test_empty_replies_of_an_agentic_step_get_a_follow_up_message(stage: AgentStage) -> None:
    stage.script(*said("", " \n", "at last"))

    result = stage.ask(agent(instructions=[{"objective": "speak", "max_internal_steps": 2}]))

    assert (result.output, len(stage.requests())) == ("at last", 3)
    assert stage.prompts()[1:] == [
        "Your reply was empty. Call a tool, or give your final answer.",
        "You have used all 2 steps. Give your final answer now, from what you know, without calling a tool.",
    ]


def test_an_agentic_step_that_never_speaks_is_exhausted(stage: AgentStage) -> None:
    stage.script({"reply": ""})

    result = stage.ask(agent(instructions=[{"objective": "speak", "max_internal_steps": 2}]))

    assert (result.status, len(stage.requests())) == ("exhausted", 3)
    assert result.error is not None
    assert result.error.message == "agent 'it' gave no answer within its 2 steps"


# Agentic steps


NUDGE = ("user", "Your reply was empty. Call a tool, or give your final answer.")
SILENT = ("assistant", None)
RESULTS = ("tool", "2.0"), ("tool", "3.0")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("minimal", [("user", "said"), ("assistant", "I look"), RESULTS[0], SILENT, RESULTS[1]]),
        ("progressive", [("user", "said"), ("assistant", "I look"), RESULTS[0], SILENT, RESULTS[1]]),
        (
            "kitchen_sink",
            [("user", "go"), ("assistant", "said"), ("user", "said"), ("assistant", "I look"), RESULTS[0], NUDGE, SILENT, RESULTS[1]],
        ),
    ],
)  # fmt: skip
def test_history_modes_show_all_calls_and_results_and_more_with_each(
    stage: AgentStage, mode: str, expected: list[Any]
) -> None:
    stage.script(
        {"match": "^go$", "reply": "said", "times": 1},
        {"reply": "I look", "tool_calls": [call("add", a=1)], "times": 1},
        {"reply": "", "times": 1},
        {"reply": "", "tool_calls": [call("add", a=2)], "times": 1},
        {"reply": "done"},
    )

    result = stage.ask(
        agent(tools=["add"], instructions=[("{input}", []), {"objective": "find", "history_mode": mode}])
    )

    assert result.output == "done"
    assert [(message["role"], message.get("content")) for message in stage.messages()[1:]] == expected


def test_an_agentic_step_reports_its_rounds(stage: AgentStage) -> None:
    stage.script(calls(call("price", item="tea"), call("fail")), {"reply": "2.50"})

    result = stage.ask(agent(tools=["price", "fail"], instructions=[{"objective": "find the price"}]))

    expected = result.agentic
    assert expected is not None
    assert (expected["final_answer"], expected["total_steps"], expected["total_tools_called"]) == ("2.50", 2, 2)
    assert (expected["objective_achieved"], expected["max_steps_reached"], expected["history_mode"]) == (
        True,
        False,
        "minimal",
    )
    assert expected["errors"] == ["fail: fleet_tools:fail raised RuntimeError: no luck"]
    assert expected["total_tokens_used"] == result.usage.input_tokens + result.usage.output_tokens
    assert isinstance(expected["total_execution_time_ms"], float)
    assert expected["total_execution_time_ms"] > 0
    first, _ = cast("list[Json]", expected["steps"])
    assert first["tool_calls"][0] == {"name": "price", "args": {"item": "tea"}, "result": {"item": "tea", "total": 2.5}}


def test_an_objective_that_was_answered_only_when_asked_to_end_was_not_achieved(stage: AgentStage) -> None:
    stage.script({"match": "used all", "reply": "a guess"}, {"tool_calls": [call("add", a=1)]})

    expected = stage.ask(agent(tools=["add"], instructions=[{"objective": "find", "max_tool_rounds": 1}])).agentic

    assert expected is not None
    assert (expected["max_steps_reached"], expected["objective_achieved"]) == (True, False)


# Calls in JSON


def asked(tool: str, method: str = "", response: str = "one moment", **params: Any) -> Json:
    return {"response": response, "mcp": {"tool": tool, "method": method, "params": params}}


def spoken(**fields: Any) -> Any:
    return agent(dialect="json", tools=["price", "add", "fail"], **fields)


def test_calls_in_json_go_on_until_a_reply_has_none(stage: AgentStage) -> None:
    stage.script(*said(asked("price", item="tea"), asked("add", "now", a=2.5), {"response": "3.50", "mcp": None}))

    result = stage.ask(spoken())

    assert result.output == "3.50"
    expected = [(message["role"], message["content"]) for message in stage.messages()[1:]]
    assert expected[2] == ("user", 'one moment\n\nTool result: {"item":"tea","total":2.5}')
    assert expected[4] == ("user", "one moment\n\nTool result: 3.5")
    assert "tools" not in stage.requests()[0]["body"]
    assert '- price: What so many of a thing cost. params: {"' in stage.messages()[0]["content"]


def test_a_list_of_calls_in_json_is_answered_in_order(stage: AgentStage) -> None:
    several = {
        "response": "both",
        "mcp": [asked("price", item="tea")["mcp"], asked("add", a=1)["mcp"], asked("pay")["mcp"], "what?"],
    }
    stage.script(*said(several, "done"))

    assert stage.ask(spoken()).output == "done"

    lines = stage.prompts()[-1].split("\n\n")
    assert lines[:3] == ["both", 'Tool result (price): {"item":"tea","total":2.5}', "Tool result (add): 2.0"]
    assert lines[3] == "Tool error (pay): Tool function 'pay' is not available. There are 'add', 'fail', 'price'."
    assert lines[4].startswith("Tool error (unknown_function): A call is an object")


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"response": "look", "mcp": {"tool": "add", "params": {"a": 1,},},}\n```',
        'I will look.\n{"response": "look", "mcp": {"tool": "add", "params": {"a": 1}}}\nOne moment.',
        "{'response': 'look', 'mcp': {'tool': 'add', 'method': '', 'params': {'a': 1}}}",
    ],
    ids=["fenced, with commas", "among words", "other quotes"],
)
def test_json_that_is_almost_json_is_mended(stage: AgentStage, reply: str) -> None:
    stage.script(*said(reply, "done"))

    assert stage.ask(spoken()).output == "done"
    assert stage.prompts()[-1] == "look\n\nTool result: 2.0"


def test_a_tool_error_is_sent_to_the_model_which_may_recover(stage: AgentStage) -> None:
    stage.script(*said(asked("fail"), asked("add", a=1), "2"))

    assert stage.ask(spoken()).output == "2"
    assert stage.prompts()[1] == "one moment\n\nTool error: fleet_tools:fail raised RuntimeError: no luck"


def test_a_tool_asked_for_by_intent_has_no_workflow_and_says_so(stage: AgentStage) -> None:
    stage.script(*said({"tool": "price", "intent": "find out", "context": "tea"}, "done"))

    assert stage.ask(spoken()).output == "done"
    assert "Tool error: This tool has no workflow of its own" in stage.prompts()[1]


def test_a_json_reply_without_response_is_the_answer_as_it_is(stage: AgentStage) -> None:
    stage.script(*said({"price": 3}))

    assert stage.ask(spoken()).output == {"price": 3}


def test_native_calls_and_calls_in_json_may_be_mixed(stage: AgentStage) -> None:
    stage.script({"reply": asked("add", a=1), "tool_calls": [call("price", item="tea")], "times": 1}, {"reply": "done"})

    assert stage.ask(agent(tools=["price", "add"])).output == "done"
    assert [message["role"] for message in stage.messages()] == ["user", "assistant", "tool", "user"]
    assert stage.prompts()[-1] == "one moment\n\nTool result: 2.0"


def test_to_an_agent_that_calls_natively_json_is_an_answer_like_any_other(stage: AgentStage) -> None:
    stage.script(*said({"response": "x", "more": 1}))

    assert stage.ask(agent(tools=["add"])).output == '{"response": "x", "more": 1}'


def test_response_mode_streaming_gives_the_reply_and_the_result_without_asking_again(stage: AgentStage) -> None:
    several = {"response": "Here it is.", "mcp": [asked("add", a=1)["mcp"], asked("fail")["mcp"]]}
    stage.script(*said(several))

    result = stage.ask(spoken(response_mode="streaming"))

    assert len(stage.requests()) == 1
    assert result.output == (
        "Here it is.\n\n[Tool executed successfully]\n\n2.0\n\nTool error: fleet_tools:fail raised RuntimeError: no luck"
    )


@pytest.mark.parametrize(
    ("last", "status"), [("enough", "succeeded"), (asked("add", response="", a=1), "exhausted")], ids=["answer", "none"]
)
def test_calls_in_json_have_the_same_bound(stage: AgentStage, last: Any, status: str) -> None:
    stage.script({"match": "used all 2 rounds", "reply": last}, {"reply": asked("add", a=1)})

    result = stage.ask(spoken(max_tool_rounds=2))

    assert (result.status, result.usage.tool_calls, len(stage.requests())) == (status, 2, 3)
    assert "To call a tool" not in json.dumps(stage.messages()), "tools are not offered any more"


def test_a_call_in_the_closing_reply_is_dropped_with_a_warning(stage: AgentStage) -> None:
    stage.script(
        {"match": "used all 1 rounds", "reply": asked("add", response="That is it.", a=2)}, {"reply": asked("add", a=1)}
    )

    result = stage.ask(spoken(max_tool_rounds=1))

    assert (result.output, result.usage.tool_calls) == ("That is it.", 1)
    assert any(
        "calls 'add' in its closing reply, after which no call is made: it was dropped" in each
        for each in result.warnings
    )


def test_a_reply_that_ends_in_the_middle_of_its_json_is_corrected(stage: AgentStage) -> None:
    stage.script(*said('{"response": "I look", "mcp": {"tool": "add", "par', {"response": "Done."}))

    assert stage.ask(spoken()).output == "Done."
    assert "Your reply cannot be used: it ends in the middle of its JSON object" in stage.prompts()[1]


def test_a_reply_without_its_last_brace_is_truncated_if_its_finish_reason_says_so(stage: AgentStage) -> None:
    stage.script({"reply": '{"title": "x", "body": "the first part"', "finish_reason": "length"})

    for asked_agent in (spoken(), agent(output={"schema": {"type": "object"}})):
        result = stage.ask(asked_agent)
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "bad_reply")
        assert "it ends in the middle of its JSON object" in result.error.message


def test_a_reply_that_is_truncated_again_fails_the_run(stage: AgentStage) -> None:
    stage.script({"reply": '{"response": "I look", "mcp": {"tool": "add", "par'})

    result = stage.ask(spoken())

    assert (result.status, result.output, len(stage.requests())) == ("failed", None, 2)
    assert result.error is not None
    assert result.error.code == "bad_reply"


# Structured output

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
SHAPES: list[Json] = [{"schema": PERSON}, {"class": "agent_tools:Person"}]


@pytest.mark.parametrize("shape", SHAPES, ids=["schema", "class"])
def test_structured_output_is_asked_for_and_parsed(stage: AgentStage, shape: Json) -> None:
    stage.script(*said('Here:\n```json\n{"name": "Ann", "age": 3}\n```'))

    assert stage.ask(agent(output=shape)).output == {"name": "Ann", "age": 3}
    assert "age" in json.dumps(stage.requests()[0]["body"]["response_format"])


@pytest.mark.parametrize("shape", SHAPES, ids=["schema", "class"])
def test_the_model_is_sent_validation_errors_until_its_answer_is_valid(stage: AgentStage, shape: Json) -> None:
    stage.script(*said("Ann, 3", {"name": "Ann", "age": -3}, {"name": "Ann", "age": 3}))

    result = stage.ask(agent(output=shape))

    assert (result.output, result.usage.model_calls) == ({"name": "Ann", "age": 3}, 3)
    assert "Your reply cannot be used: the reply is not JSON" in stage.prompts()[1]
    assert "Your reply cannot be used: age: " in stage.prompts()[2]
    assert stage.messages()[-2] == {"role": "assistant", "content": '{"name": "Ann", "age": -3}'}


def test_after_its_trials_a_reply_that_is_still_wrong_fails_the_run(stage: AgentStage) -> None:
    stage.script({"reply": "Ann"})

    result = stage.ask(agent(output={**SHAPES[0], "trials": 1}))

    assert (result.status, result.output, len(stage.requests())) == ("failed", None, 2)
    assert result.error is not None
    assert result.error.code == "bad_reply"
    assert "after 1 corrections: the reply is not JSON" in result.error.message


def test_an_invalid_schema_is_reported_before_a_model_is_called(stage: AgentStage) -> None:
    result = stage.ask(agent(output={"schema": {"type": "objct"}}))

    assert stage.requests() == []
    assert result.error is not None
    assert (
        result.error.message
        == "'output.schema.type' of agent 'it' is not a JSON Schema: 'objct' is not valid under any of the given schemas"
    )


def test_an_agent_with_tools_gets_the_schema_and_corrections_after_its_last_round(stage: AgentStage) -> None:
    stage.script(
        {"match": "used all", "reply": "Ann"},
        {"match": "cannot be used", "reply": {"name": "Ann"}},
        {"tool_calls": [call("add", a=1)]},
    )

    result = stage.ask(agent(tools=["add"], max_tool_rounds=1, output=SHAPES[0]))

    assert result.output == {"name": "Ann"}, result.error
    assert "fits this JSON schema" in stage.messages(0)[0]["content"]
    assert [request["body"].get("tool_choice") for request in stage.requests()] == [None, "none", "none"]


def test_an_agent_that_calls_tools_in_json_may_answer_in_its_response(stage: AgentStage) -> None:
    stage.script(*said(asked("add", a=1), {"response": {"name": "Ann"}, "mcp": None}))

    assert stage.ask(spoken(output=SHAPES[0])).output == {"name": "Ann"}
