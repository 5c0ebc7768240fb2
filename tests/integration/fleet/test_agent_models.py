"""Models that fail, hang, break off or are left; what events tell of a reply while it comes; and secrets."""

from __future__ import annotations

from typing import Any

import pytest

from cantata.client.client import EmbeddedClient
from cantata.client.runs import Run
from cantata.flows.definitions import Model, ReplyCache, Synthesizer, Team
from cantata.flows.events import ReplyDelta
from tests.integration.fleet.agent_stage import MAIN, OTHER, PATIENCE_S, AgentStage, agent, call
from tests.integration.fleet.conftest import skip_pauses
from tests.waiting import until

ROUTED = {"main": Model(model=OTHER, fallbacks=[MAIN])}  # the models of the server: gpt-4o first, then gpt-4o-mini
FIRST, SECOND = "gpt-4o$", "gpt-4o-mini$"
SECRET = "sk-test-secret-0123456789"


def asked(stage: AgentStage) -> list[str]:
    """The models that were asked, in order."""
    return [str(request["model"]) for request in stage.requests()]


def deltas(run: Run) -> list[tuple[str | None, int | None, str]]:
    """Step, attempt and text of the pieces in events; pieces of one attempt that follow each other are joined."""
    found: list[tuple[str | None, int | None, str]] = []
    for event in run.log():
        if isinstance(event, ReplyDelta):
            text = event.text
            if found and found[-1][:2] == (event.step, event.attempt):
                text = found.pop()[2] + text
            found.append((event.step, event.attempt, text))
    return found


# Failures


def test_another_model_is_asked_after_the_last_try_of_the_first(stage: AgentStage, client: EmbeddedClient) -> None:
    stage.script({"model": FIRST, "status": 500}, {"model": SECOND, "reply": "instead"})

    run = stage.start(agent(model="main", retries=1), models=ROUTED)
    skip_pauses(client, run)
    result = run.result(0)

    assert (result.output, asked(stage)) == ("instead", ["gpt-4o", "gpt-4o", "gpt-4o-mini"])
    found = [(event.type, getattr(event, "model", None)) for event in run.log() if event.type in ("retry", "fallback")]
    assert found == [("retry", None), ("fallback", MAIN)]


def test_another_model_is_asked_at_once_if_no_try_would_help(stage: AgentStage) -> None:
    stage.script({"model": FIRST, "status": 401}, {"model": SECOND, "reply": "instead"})

    assert stage.ask(agent(model="main", retries=3), models=ROUTED).output == "instead"
    assert asked(stage) == ["gpt-4o", "gpt-4o-mini"]


def test_no_other_model_is_asked_if_the_request_is_at_fault(stage: AgentStage) -> None:
    stage.script({"model": FIRST, "status": 400}, {"model": SECOND, "reply": "instead"})

    assert stage.ask(agent(model="main"), models=ROUTED).status == "failed"
    assert asked(stage) == ["gpt-4o"]


def test_if_all_fail_each_is_named(stage: AgentStage) -> None:
    stage.script({"model": FIRST, "status": 500, "reply": "sick"}, {"model": SECOND, "status": 503, "reply": "tired"})

    result = stage.ask(agent(model="main"), models=ROUTED)

    assert result.status == "failed"
    assert result.error is not None
    assert "sick" in result.error.message
    assert "tired" in result.error.message


@pytest.mark.slow("a model's time runs out")
def test_a_model_that_hangs_is_not_waited_for_longer_than_its_time_and_another_has_its_own(stage: AgentStage) -> None:
    stage.script({"model": FIRST, "delay_s": 30}, {"model": SECOND, "reply": "instead"})

    result = stage.ask(agent(model="main", timeout_s=5), models=ROUTED)

    assert result.output == "instead", result.error
    until(lambda: stage.requests()[0]["client_left"], "the end of the first request")


def test_a_model_that_hangs_for_good_fails_the_run_with_its_name(stage: AgentStage) -> None:
    stage.script({"delay_s": 30})

    result = stage.ask(agent(timeout_s=0.3))

    assert result.error is not None
    assert result.error.code == "model_timeout"
    assert result.error.message == f"model {MAIN!r} did not answer within 0.3 s"


def test_a_provider_that_works_again_is_asked_again_after_the_pause_it_asks_for(stage: AgentStage) -> None:
    pause = {"status": 429, "headers": {"Retry-After": "1"}, "times": 1}
    stage.script({"status": 500, "times": 1}, pause, {"reply": "at last"})

    assert stage.ask(agent(retries=1)).output == "at last"  # the wait for a pause is no failure
    _, second, third = stage.requests()
    assert third["at"] - second["at"] >= 1


def test_a_pause_beyond_the_runs_deadline_fails_at_once_and_a_later_run_is_told_the_same(stage: AgentStage) -> None:
    stage.script({"status": 429, "headers": {"Retry-After": "3600"}, "reply": "come back in an hour"})

    client = stage.client(agent(model="openai/gpt-4o-gone", retries=3))
    first, second = (client.submit_turn("go", agent="it", timeout_s=30).result(PATIENCE_S) for _ in range(2))

    for found in (first, second):
        assert found.error is not None
        assert (found.status, found.error.code) == ("failed", "rate_limited")
        assert "come back in an hour" in found.error.message
    assert len(stage.requests()) <= 2  # the other worker may not know of the pause yet


def test_a_fallback_answers_at_once_while_the_model_is_paused(stage: AgentStage) -> None:
    stage.script({"model": "busy$", "status": 429, "headers": {"Retry-After": "3600"}}, {"reply": "quick"})
    models = {"best": Model(model="openai/gpt-4o-busy", fallbacks=["openai/gpt-4o-second"])}

    first, second = (stage.ask(agent(model="best", retries=3), models=models) for _ in range(2))

    assert [(found.status, found.output) for found in (first, second)] == [("succeeded", "quick")] * 2
    assert asked(stage).count("gpt-4o-second") == 2


@pytest.mark.parametrize(
    ("rule", "stream"),
    [
        ({"reply": ""}, True),
        ({"reply": " \n"}, False),
        ({"disconnect": True}, True),
        ({"reply": "cut here", "truncate": 40}, False),
        ({"reply": "cut here", "finish_reason": ""}, True),
    ],
    ids=["empty", "blank", "none", "broken off", "a stream without its end"],
)
def test_a_reply_that_is_none_is_tried_again(
    stage: AgentStage, client: EmbeddedClient, rule: dict[str, Any], stream: bool
) -> None:
    stage.script({**rule, "times": 1}, {"reply": "whole"})

    run = stage.start(agent(retries=1, stream=stream))
    skip_pauses(client, run)

    assert (run.result(0).output, len(stage.requests())) == ("whole", 2)


def test_a_reply_that_was_cut_at_its_longest_is_the_answer_with_a_warning(stage: AgentStage) -> None:
    stage.script({"reply": "and then", "finish_reason": "length"})

    result = stage.ask(agent())

    assert (result.output, result.warnings) == (
        "and then",
        ["a reply to agent 'it' is incomplete: its finish reason is 'length'"],
    )


def test_after_the_failure_of_a_later_round_only_that_round_is_asked_again(
    stage: AgentStage, client: EmbeddedClient
) -> None:
    stage.script(
        {"after_tools": 0, "tool_calls": [call("add", a=1)]},
        {"after_tools": 1, "status": 500, "times": 1},
        {"reply": "2"},
    )

    run = stage.start(agent(tools=["add"], retries=1))
    skip_pauses(client, run)
    result = run.result(0)

    assert (result.output, result.usage.tool_calls) == ("2", 1)
    assert [len(request["body"]["messages"]) for request in stage.requests()] == [1, 3, 3]


def test_the_fallback_of_a_synthesizer_is_asked_too(stage: AgentStage) -> None:
    stage.script({"model": FIRST, "status": 401}, {"match": "^merge", "reply": "merged"})
    team = Team(
        mode="broadcast", agents=["it"], synthesizer=Synthesizer(model="main", prompt="merge {agent_responses}")
    )

    client = stage.client(agent(), models=ROUTED, teams={"one": team})

    assert client.submit_turn("go", team="one").result(PATIENCE_S).output == "merged"


# What events tell


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_reply_is_published_while_it_comes(stage: AgentStage) -> None:
    stage.script({"reply": "one two three", "chunk_delay_s": 1.5})

    run = stage.start(agent())
    first = next(event for event in run.events() if isinstance(event, ReplyDelta))

    assert first.text != "one two three"
    assert run.status() == "running"
    assert run.result(PATIENCE_S).output == "one two three"
    assert deltas(run) == [("it", 1, "one two three")]


def test_each_round_and_each_instruction_is_published_under_its_step(stage: AgentStage) -> None:
    stage.script(
        {"match": "^go", "after_tools": 0, "reply": "I look", "tool_calls": [call("add", a=1)]},
        {"match": "^go", "reply": "2"},
        {"reply": "3"},
    )

    run = stage.start(agent(tools=["add"], instructions=["{input}", ("then {input}", [])]))

    assert run.result(PATIENCE_S).output == "3"
    assert deltas(run) == [("it/@1", 1, "I look"), ("it/@1/r1", 1, "2"), ("it/@2", 1, "3")]


def test_nothing_is_published_with_stream_off(stage: AgentStage) -> None:
    run = stage.start(agent(stream=False))

    assert run.result(PATIENCE_S).output == "echo: go"
    assert deltas(run) == []
    assert [request["stream"] for request in stage.requests()] == [False]


@pytest.mark.parametrize(("stream", "found"), [(True, [("ask", 1, "echo: go")]), (None, [])])
def test_a_chain_node_is_streamed_if_its_agent_sets_it(
    stage: AgentStage, stream: bool | None, found: list[tuple[str, int, str]]
) -> None:
    nodes = [{"node_id": "ask", "kind": "agent", "name": "it", "input": {"text": "go"}}]

    run = stage.client(agent(stream=stream)).submit_chain({"nodes": nodes, "entry_node": "ask"})

    assert run.result(PATIENCE_S).success
    assert deltas(run) == found


def test_of_a_stream_that_breaks_nothing_is_published_after_the_next_attempt_began(stage: AgentStage) -> None:
    stage.script({"reply": "one two three four", "chunk_delay_s": 1.0, "truncate": 800, "times": 1}, {"reply": "whole"})

    run = stage.start(agent(retries=1))

    assert run.result(PATIENCE_S).output == "whole"
    (step, attempt, text), *rest = deltas(run)
    assert (step, attempt, rest) == ("it", 1, [("it", 2, "whole")])
    assert "one two three four".startswith(text)
    order = [
        (event.type, event.attempt)
        for event in run.log()
        if event.type in ("started", "delta", "retry") and event.step == "it"
    ]
    assert order[-3:] == [("retry", 1), ("started", 2), ("delta", 2)]


def test_of_a_model_that_breaks_off_nothing_is_published_after_another_is_called(stage: AgentStage) -> None:
    broken = {"model": FIRST, "reply": "one two three four", "chunk_delay_s": 1.0, "truncate": 800}
    stage.script(broken, {"model": SECOND, "reply": "whole", "delay_s": 0.1})

    run = stage.start(agent(model="main"), models=ROUTED)

    assert run.result(PATIENCE_S).output == "whole"
    found = [event for event in run.log() if event.type in ("delta", "fallback")]
    after = found.index(next(event for event in found if event.type == "fallback"))
    assert after > 0
    assert "".join(event.text for event in found[after + 1 :] if isinstance(event, ReplyDelta)) == "whole"


# The end of a run


def test_cancelling_a_run_hangs_up_on_its_model(stage: AgentStage) -> None:
    stage.script({"after_tools": 0, "tool_calls": [call("add", a=1)]}, {"reply": "one two three", "delay_s": 30})
    run = stage.start(agent(tools=["add"]))
    until(lambda: len(stage.requests()) == 2, "the second request")

    run.cancel()

    assert run.result(PATIENCE_S).status == "cancelled"
    until(lambda: stage.requests()[1]["client_left"], "the end of the request")


def test_cancelling_a_run_stops_a_stream(stage: AgentStage) -> None:
    stage.script({"reply": "word " * 200, "chunk_delay_s": 0.1})
    run = stage.start(agent())
    next(event for event in run.events() if isinstance(event, ReplyDelta))

    run.cancel()

    until(lambda: stage.requests()[0]["client_left"], "the end of the request")
    assert [event.type for event in run.log()][-1] == "closed"


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_call_used_that_was_cut_off_counts_for_its_run(stage: AgentStage, streamed: bool) -> None:
    stage.script({"reply": "word " * 200, "chunk_delay_s": 0.1} if streamed else {"reply": "one", "delay_s": 30})
    run = stage.start(agent(stream=streamed))
    until(lambda: stage.requests(), "the request")
    if streamed:
        next(event for event in run.events() if isinstance(event, ReplyDelta))

    run.cancel()

    used = until(lambda: (usage := run.result(PATIENCE_S).usage).model_calls and usage, "the usage of the call")
    assert used.model_calls == 1
    assert used.input_tokens > 0
    assert (used.output_tokens > 0) == streamed


def test_no_secret_in_the_words_of_a_tool_or_a_provider_reaches_a_record(stage: AgentStage) -> None:
    stage.script(
        {"after_tools": 0, "tool_calls": [call("leak")]},
        {"model": FIRST, "status": 401, "reply": f"{SECRET} is wrong"},
        {"reply": "sorry"},
    )
    breaker = "agent_tools:leaking"

    run = stage.start(agent(model="main", tools=["leak"], chainbreakers=[breaker]), models=ROUTED)
    result = run.result(PATIENCE_S)

    assert result.output == "sorry"
    assert stage.results() == [{"error": "agent_tools:leak raised RuntimeError: the key *** is wrong"}]
    assert any(breaker in warning for warning in result.warnings)
    assert "0123456789" not in repr(result) + repr(list(run.log())) + repr(run.record())


@pytest.mark.parametrize(("share", "calls"), [("tenant", 2), ("all", 1)])
def test_a_tenant_gets_a_cached_reply_of_another_only_where_the_model_says_so(
    stage: AgentStage, share: Any, calls: int
) -> None:
    cached = {
        "main": Model(model=MAIN, params={"temperature": 0.5, "seed": calls}, cache=ReplyCache(ttl_s=60, share=share))
    }
    client = stage.client(agent(model="main"), models=cached)

    results = [
        client.submit_turn("merger?", agent="it", labels={"tenant": tenant}).result(PATIENCE_S)
        for tenant in ("acme", "evil", "acme")
    ]

    assert len(stage.requests()) == calls
    assert [bool(result.usage.model_calls) for result in results] == [True, calls == 2, False]
