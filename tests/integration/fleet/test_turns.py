"""User turns through real workers and a scripted model server over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from cantata.client.client import EmbeddedClient
from cantata.errors import ConfigError
from cantata.flows.wire import RunResult
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import ask, skip_pauses
from tests.waiting import until

Asked = Callable[[], list[str]]

HURRY_S = 3600.0


@pytest.fixture(autouse=True)
def asked(models: ScriptedModels) -> Asked:
    """The prompts that came to the model server since the test began."""
    models.script([])
    before = len(models.journal())
    return lambda: [str(line["text"]) for line in models.journal()[before:]]


def turn(client: EmbeddedClient, text: str, **target: Any) -> RunResult:
    return client.submit_turn(text, **target).result(40)


def test_a_pipeline_gives_each_agent_the_answer_before_it(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script(
        [
            {"match": "^ann <hello>$", "reply": "from ann"},
            {"match": "^bob <from ann>$", "reply": "[FINAL] from bob"},
            {"match": r"^cleo <\[FINAL\] from bob>$", "reply": "from cleo"},
        ]
    )

    result = turn(client, "hello", team="row")

    assert (result.status, result.output, result.agents, result.steps_run) == (
        "succeeded",
        "from cleo",
        ["ann", "bob", "cleo"],
        3,
    )
    assert result.usage.model_calls == 3
    assert result.usage.cost_usd, "gpt-4o-mini has a price"


def test_an_agent_with_two_instructions_is_one_step_to_the_team_around_it(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script(
        [
            {"match": "^ann <go>$", "reply": "1"},
            {"match": "^first <1>$", "reply": "2"},
            {"match": "^second <2>$", "reply": "3"},
            {"match": "^ann <3>$", "reply": "4"},
        ]
    )

    assert turn(client, "go", team="longer").output == "4"


def test_a_pipeline_stops_at_the_first_failure_and_names_the_step(
    client: EmbeddedClient, models: ScriptedModels, asked: Asked
) -> None:
    models.script([{"match": "^bob", "status": 400, "reply": "no"}])

    result = turn(client, "hello", team="row")

    assert (result.status, result.output, result.agents) == ("failed", None, ["ann"])
    assert result.error is not None
    assert result.error.message.startswith("Pipeline failed at step 2 (bob): ")
    assert result.error.step == "bob"
    assert not any("cleo" in prompt for prompt in asked()), "later agents are not asked"


def test_a_broadcast_without_synthesizer_is_the_json_of_all_answers_in_declared_order(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script([{"match": f"^{name} ", "reply": f"{name} says"} for name in ("ann", "bob", "cleo")])

    output = turn(client, "hello", team="all").output

    assert isinstance(output, str)
    assert list(json.loads(output).items()) == [("ann", "ann says"), ("bob", "bob says"), ("cleo", "cleo says")]


def test_a_failed_agent_of_a_broadcast_is_an_answer_that_says_so(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script([{"match": "^bob", "status": 400}, {"reply": "fine"}])

    result = turn(client, "hello", team="all")

    assert result.status == "succeeded"
    assert json.loads(str(result.output))["bob"].startswith("Error: ")
    assert any("agent 'bob' is missing" in warning for warning in result.warnings)


def test_a_broadcast_in_which_all_fail_fails(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"status": 400}])

    result = turn(client, "hello", team="all")

    assert result.status == "failed"
    assert result.error is not None
    assert "every agent of the team failed" in result.error.message


def test_the_synthesizer_gets_the_answers_and_the_text_and_no_other_brace_is_touched(
    client: EmbeddedClient, models: ScriptedModels, asked: Asked
) -> None:
    models.script(
        [{"match": "^merge", "reply": "merged"}, {"match": "^ann", "reply": "{user_input} {input}"}, {"reply": "plain"}]
    )

    assert turn(client, "what {agent_responses}?", team="merged").output == "merged"

    merge = next(prompt for prompt in asked() if prompt.startswith("merge"))
    assert (
        merge
        == """merge 'what {agent_responses}?' {not_a_placeholder} of {"ann":"{user_input} {input}","twice":"plain"}"""
    )


def test_a_failed_synthesizer_leaves_the_answers_and_a_warning(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "^merge", "status": 500}, {"reply": "fine"}])

    result = turn(client, "hello", team="merged")

    assert (result.status, json.loads(str(result.output))) == ("succeeded", {"ann": "fine", "twice": "fine"})
    assert any("the synthesizer failed" in warning for warning in result.warnings)


def test_min_responses_goes_on_without_the_slowest(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "^cleo", "delay_s": 60}, {"reply": "fast"}])
    since = time.monotonic()

    result = turn(client, "hello", team="first")

    assert time.monotonic() - since < 40
    assert json.loads(str(result.output)) == {"ann": "fast", "bob": "fast", "cleo": "Error: did not answer in time"}


def test_deadline_s_goes_on_with_who_has_answered_and_lists_the_late(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    models.script([{"match": "^(bob|cleo)", "delay_s": 60}, {"reply": "fast"}])
    since = time.monotonic()

    run = client.submit_turn("hello", team="hurried", timeout_s=2 * HURRY_S)
    until(lambda: any(step.output == "fast" for step in run.record().steps.values()), "the answer of the first")
    client.skip(HURRY_S)
    result = run.result(40)

    assert time.monotonic() - since < 40
    assert (result.status, json.loads(str(result.output))["ann"]) == ("succeeded", "fast")
    assert sum("did not answer in time" in warning for warning in result.warnings) == 2


def test_a_passing_failure_is_tried_again_after_a_pause_and_one_that_stays_is_told(
    client: EmbeddedClient, models: ScriptedModels, asked: Asked
) -> None:
    models.script(
        [
            {"status": 429, "headers": {"Retry-After": "1"}, "times": 1},
            {"status": 500, "times": 1},
            {"reply": "at last"},
        ]
    )

    run = client.submit_turn("hello", agent="ann")
    skip_pauses(client, run)
    result = run.result(0)

    assert (result.status, result.output, len(asked())) == ("succeeded", "at last", 3)
    types = [event.type for event in run.log()]
    assert (types.count("rate_limited"), types.count("retry")) == (1, 1), types

    models.script([{"status": 503}])
    run = client.submit_turn("hello", agent="ann")
    skip_pauses(client, run)
    result = run.result(0)
    assert (result.status, len(asked())) == ("failed", 3 + 3)


@pytest.mark.parametrize(("agent", "said"), [("keyless", "ANTHROPIC_API_KEY"), ("nobody", "no-such-provider/model")])
def test_a_missing_key_or_an_unknown_model_is_told_in_a_sentence(client: EmbeddedClient, agent: str, said: str) -> None:
    result = turn(client, "hello", agent=agent)

    assert result.status == "failed"
    assert result.error is not None
    assert said in result.error.message


def test_no_secret_reaches_a_record(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"status": 401, "reply": "the key sk-test-secret-0123456789 is wrong"}])

    run = client.submit_turn("hello", agent="ann")
    result = run.result(30)

    assert result.status == "failed"
    assert "0123456789" not in repr(result) + repr(list(run.log())) + repr(run.record())


def test_structured_output_is_parsed_and_a_chain_can_read_it(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script([{"match": "which", "reply": '{"pick": "b"}'}])
    nodes = [
        {"node_id": "choose", "kind": "agent", "name": "picker", "input": {"text": "which?"}, "next_node": "show"},
        {"node_id": "show", "kind": "tool", "name": "echo", "input_map": {"picked": "choose.pick"}},
    ]

    assert ask(client, *nodes).final_output == {"picked": "b"}


def test_a_team_and_an_agent_can_be_a_skill_of_a_chain(client: EmbeddedClient, models: ScriptedModels) -> None:
    models.script(
        [
            {"match": "^ann", "reply": "a"},
            {"match": "^bob <a>", "reply": "b"},
            {"match": "^cleo <b>", "reply": "c"},
            {"match": "^(first|second)", "reply": "d"},
        ]
    )
    nodes = [
        {"node_id": "team", "kind": "skill", "name": "row", "input": {"input": "go"}, "next_node": "agent"},
        {"node_id": "agent", "kind": "skill", "name": "twice", "input_map": {"text": "team"}, "on_error": "skip"},
    ]

    response = ask(client, *nodes)

    assert response.outputs["team"] == "c"
    assert response.success


def test_bad_turns_are_refused_before_they_are_accepted(client: EmbeddedClient) -> None:
    for target, said in (
        ({"team": "rwo"}, "did you mean 'row'"),
        ({"agent": "x", "team": "row"}, "one of them"),
        ({}, "no agent is configured to answer"),
    ):
        with pytest.raises(ConfigError, match=said):
            client.submit_turn("hello", **target)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the text is empty"):
        client.submit_turn("  ", team="row")
