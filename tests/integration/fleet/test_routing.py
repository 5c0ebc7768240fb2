"""Teams whose agents are chosen while the turn goes on, through real workers and a scripted model server over HTTP."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.flows.definitions import Agent, Definitions, Router, Team, TeamRule
from cantata.flows.wire import RunResult
from cantata.testing import ScriptedModels
from tests.waiting import until

HERE = Path(__file__).parent
MODEL, ROUTING = "openai/gpt-4o-mini", "openai/gpt-4o"
NAMES = ("math", "poet", "clerk")
names = itertools.count()


class Stage:
    """Asks a router team and tells what its models were asked."""

    def __init__(self, url: str, models: ScriptedModels) -> None:
        self._url = url
        self._models = models
        self._before = len(models.journal())
        self._clients = ExitStack()
        models.script([])

    def client(self, *, agents: dict[str, Agent] | None = None, **team: Any) -> Client:
        """A client whose definitions have the team."""
        members = {
            name: Agent(model=MODEL, retries=0, description=f"is good at {name}", instructions=[f"{name} <{{input}}>"])
            for name in NAMES
        }
        fields = {"mode": "router", "agents": list(NAMES), **team}
        if fields["mode"] == "router" and "router" not in fields:
            fields["router"] = Router(models=[ROUTING], retries=0)
        definitions = Definitions(folder=str(HERE), agents=members | (agents or {}), teams={"team": Team(**fields)})
        return self._clients.enter_context(Client(self._url, config=definitions))

    def ask(self, text: str = "hello", *, session: str | None = None, **team: Any) -> RunResult:
        """Have the team answer."""
        return self.client(**team).submit_turn(text, team="team", session=session).result(30)

    def script(self, *rules: dict[str, Any]) -> None:
        """What the models say from now on; `route` is short for what the routing model says."""
        self._models.script(
            [{"model": "gpt-4o$", "reply": rule["route"], **_rest(rule)} if "route" in rule else rule for rule in rules]
        )

    def requests(self, model: str) -> list[dict[str, Any]]:
        """What was asked of a model."""
        return [line for line in self._models.journal()[self._before :] if f"openai/{line['model']}" == model]

    def routed(self) -> list[str]:
        """The prompts of the routing model."""
        return [str(line["text"]) for line in self.requests(ROUTING)]

    def asked(self) -> list[str]:
        """The prompts of the agents."""
        return [str(line["text"]) for line in self.requests(MODEL)]

    def close(self) -> None:
        self._clients.close()


def _rest(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if key != "route"}


def chosen(name: str, **more: Any) -> dict[str, Any]:
    return {"route": json.dumps({"chosen_agent": name, **more})}


@pytest.fixture
def stage(client: EmbeddedClient, models: ScriptedModels) -> Iterator[Stage]:
    stage = Stage(client.redis_url, models)
    yield stage
    stage.close()


# --- rules and routers ----------------------------------------------------------------------------------------------


def test_a_router_is_asked_once_and_its_agent_answers(stage: Stage) -> None:
    stage.script(chosen("poet"), {"match": "^poet <hello>$", "reply": "a poem"})
    result = stage.ask()
    assert (result.status, result.output, result.agents) == ("succeeded", "a poem", ["poet"])
    (prompt,) = stage.routed()
    assert "- math: is good at math" in prompt
    assert "hello" in prompt
    assert "No previous conversation history." in prompt


def test_the_first_rule_that_matches_chooses_without_a_model(stage: Stage) -> None:
    rules = [TeamRule(match="^sum ", agent="math"), TeamRule(match="(?i)SUM", agent="clerk")]
    assert stage.ask("sum 1 2", rules=rules).output == "echo: math <sum 1 2>"
    assert stage.ask("the Sum", rules=rules).output == "echo: clerk <the Sum>"
    assert stage.routed() == []


def test_where_no_rule_matches_the_router_is_asked(stage: Stage) -> None:
    stage.script(chosen("poet"))
    assert stage.ask("love", rules=[TeamRule(match="^sum ", agent="math")]).output == "echo: poet <love>"
    assert len(stage.routed()) == 1


def test_a_rule_may_be_a_function(stage: Stage) -> None:
    rules = [
        TeamRule(function="routing_tools:broken", agent="clerk"),
        TeamRule(function="routing_tools:long", agent="poet"),
    ]
    rules += [TeamRule(function="routing_tools:first_word")]
    result = stage.ask("math is fun", rules=rules, default_agent="clerk", router=None)
    assert result.output == "echo: math <math is fun>"
    assert result.warnings == ["rule 1 (routing_tools:broken) chooses no agent: RuntimeError: out of order"]
    assert stage.ask("x" * 200, rules=rules, default_agent="clerk", router=None).agents == ["poet"]
    assert stage.ask("nobody", rules=rules, default_agent="clerk", router=None).agents == ["clerk"]


def test_a_pattern_that_would_search_for_ever_chooses_nobody_and_holds_up_nobody(stage: Stage) -> None:
    rules = [TeamRule(match="(a|aa)+$", agent="math"), TeamRule(match="!$", agent="poet")]
    result = stage.ask("a" * 60 + "!", rules=rules, default_agent="clerk", router=None)
    assert result.agents == ["poet"]
    assert result.warnings == ["rule 1 chooses no agent: the pattern '(a|aa)+$' takes too long: the search has 0.5 s"]


def test_a_refined_query_takes_the_place_of_the_text(stage: Stage) -> None:
    stage.script(chosen("math", refined_query="1 + 1"))
    assert stage.ask("one and one").output == "echo: math <1 + 1>"


@pytest.mark.parametrize("query", [None, "", "  "])
def test_without_a_refined_query_the_text_stays(stage: Stage, query: str | None) -> None:
    stage.script(chosen("math", refined_query=query))
    assert stage.ask("one and one").output == "echo: math <one and one>"


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"chosen_agent": "poet"}\n```',
        'I think it is this: {"chosen_agent": "poet"} since it rhymes.',
        '{"chosen_agent": "poet",}',
        '{"chosen_agent": "math"}\nNo, better:\n{"chosen_agent": "poet"}',
        "poet",
    ],
)
def test_a_decision_may_be_fenced_or_have_words_around_it(stage: Stage, reply: str) -> None:
    stage.script({"route": reply})
    assert stage.ask().agents == ["poet"]
    assert len(stage.routed()) == 1


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("I would ask the poet.", "the reply has no JSON object"),
        ('["poet"]', "the reply has no JSON object"),
        ('{"agent": "poet"}', "'chosen_agent' is null, which is not an agent; the agents are 'math', 'poet', 'clerk'"),
        ('{"chosen_agent": "bard"}', "'chosen_agent' is \"bard\", which is not an agent"),
    ],
)
def test_an_unusable_decision_is_told_to_the_router_once(stage: Stage, reply: str, fault: str) -> None:
    stage.script({**chosen("poet"), "match": "cannot be used"}, {"route": reply})
    assert stage.ask().output == "echo: poet <hello>"
    first, second = stage.requests(ROUTING)
    assert len(first["body"]["messages"]) == 1
    told = second["body"]["messages"]
    assert told[1] == {"role": "assistant", "content": reply}
    assert told[2]["content"].startswith(f"Your reply cannot be used: {fault}")


def test_after_two_unusable_decisions_the_default_agent_answers(stage: Stage) -> None:
    stage.script({"route": "hm"})
    result = stage.ask(default_agent="clerk")
    assert (result.output, result.agents) == ("echo: clerk <hello>", ["clerk"])
    assert result.warnings == ["the router made no decision, so 'clerk' answers: the reply has no JSON object"]
    assert len(stage.routed()) == 2


def test_without_a_default_agent_the_turn_fails(stage: Stage) -> None:
    stage.script({"route": "hm"})
    result = stage.ask()
    assert (result.status, result.output) == ("failed", None)
    assert result.error
    assert result.error.code == "no_agent"
    assert result.error.message == (
        "I couldn't determine which agent should handle your request. (the reply has no JSON object)"
    )


def test_an_empty_reply_is_no_decision(stage: Stage) -> None:
    stage.script({"route": ""})
    result = stage.ask(default_agent="clerk")
    assert result.agents == ["clerk"]


def test_a_router_that_is_late_is_asked_once_more_then_left(stage: Stage) -> None:
    stage.script({"route": "late", "delay_s": 5})
    result = stage.ask(router=Router(models=[ROUTING], timeout_s=0.3), default_agent="clerk")
    assert result.output == "echo: clerk <hello>"
    assert result.warnings == ["the router made no decision, so 'clerk' answers: the router took longer than its 0.3 s"]
    assert len(stage.routed()) == 2


def test_a_router_whose_model_fails_fails_the_turn(stage: Stage) -> None:
    stage.script({"model": "gpt-4o$", "status": 401, "reply": "no key"})
    result = stage.ask()
    assert result.status == "failed"
    assert result.error
    assert result.error.message.startswith("Sorry, an error occurred during agent selection: ")
    assert len(stage.routed()) == 1


def test_a_router_whose_model_fails_may_have_a_default_agent(stage: Stage) -> None:
    stage.script({"model": "gpt-4o$", "status": 401, "reply": "no key"})
    assert stage.ask(default_agent="clerk").agents == ["clerk"]


def test_a_router_is_tried_again_when_its_failure_may_pass(stage: Stage) -> None:
    stage.script({"model": "gpt-4o$", "status": 503, "reply": "busy", "times": 1}, chosen("poet"))
    assert stage.ask(router=Router(models=[ROUTING], retries=2)).agents == ["poet"]


@pytest.mark.parametrize(
    "function", ["routing_tools:route", "routing_tools:route_async", "routing_tools:route_as_text"]
)
def test_a_router_may_be_a_function(stage: Stage, function: str) -> None:
    assert stage.ask("poet please", router=Router(function=function)).output == "echo: poet <poet please>"


def test_a_rule_and_a_router_get_the_context_of_their_step_if_they_take_one(stage: Stage) -> None:
    rules = [TeamRule(function="routing_tools:rule_by_memory", agent="clerk")]
    result = stage.ask("a song", rules=rules, router=Router(function="routing_tools:route_by_memory"))
    memory = stage.client().memory
    assert (result.agents, result.warnings) == (["poet"], [])
    assert [memory.retrieve_memory(key, result.run_id) for key in ("rule asked", "asked")] == ["a song", "a song"]


def test_a_function_is_told_the_history_and_the_descriptions(stage: Stage) -> None:
    session = f"s{next(names)}"
    router = Router(function="routing_tools:tell")
    stage.ask("math 1", session=session, router=router)
    told = json.loads(
        str(stage.ask("math 2", session=session, router=router).output).removeprefix("echo: math <").removesuffix(">")
    )
    assert told["history"][0]["content"] == "math 1"
    assert told["descriptions"] == {name: f"is good at {name}" for name in NAMES}


@pytest.mark.parametrize("function", ["routing_tools:broken_router", "routing_tools:hang_router"])
def test_a_function_that_fails_leaves_it_to_the_default_agent(stage: Stage, function: str) -> None:
    result = stage.ask(router=Router(function=function, timeout_s=0.5), default_agent="clerk")
    assert result.agents == ["clerk"]


def test_a_template_is_filled_in_its_three_places_only(stage: Stage) -> None:
    template = 'H {history} U {user_input} A {agent_details} J {"chosen_agent": "<agent_name>"} {other}'
    stage.script(chosen("poet"))
    stage.ask(
        "{history} {x}",
        router=Router(models=[ROUTING], decision_prompt_template=template, instructions=[None, "Now: {input}"]),
    )
    (prompt,) = stage.routed()
    assert prompt.startswith("Now:\n\nH No previous conversation history. U {history} {x} A - math: ")
    assert prompt.endswith('J {"chosen_agent": "<agent_name>"} {other}')


# --- what answers say of the turn -----------------------------------------------------------------------------------


def test_a_reroute_enters_routing_from_its_first_step(stage: Stage) -> None:
    stage.script(
        {**chosen("math"), "match": "says:\nhello"},
        {"match": "^math <hello>$", "reply": " [REROUTE]  write it in verse "},
        {**chosen("poet"), "match": "says:\nwrite it in verse"},
        {"match": "^poet <write it in verse>$", "reply": "verse"},
    )
    result = stage.ask()
    assert (result.output, result.agents) == ("verse", ["math", "poet"])


def test_a_reroute_may_be_matched_by_a_rule(stage: Stage) -> None:
    stage.script(
        chosen("math"), {"match": "^math", "reply": "[REROUTE] verse: it"}, {"match": "^poet", "reply": "done"}
    )
    assert stage.ask(rules=[TeamRule(match="^verse:", agent="poet")]).output == "done"
    assert len(stage.routed()) == 1


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        ("[FINAL] done ", "done"),
        ("  [FINAL]done", "done"),
        ("[final] done", "[final] done"),
        ("so [FINAL] done", "so [FINAL] done"),
        (" plain \n", " plain \n"),
        ("[REROUT] x", "[REROUT] x"),
    ],
)
def test_prefixes_count_at_the_very_start_only(stage: Stage, reply: str, output: str) -> None:
    stage.script(chosen("math"), {"match": "^math", "reply": reply})
    assert stage.ask().output == output


def test_an_agent_that_always_reroutes_uses_up_the_steps(stage: Stage) -> None:
    stage.script(chosen("math"), {"match": "^math", "reply": "[REROUTE] again"})
    result = stage.ask(max_internal_steps=3)
    assert result.status == "exhausted"
    assert result.output == "[REROUTE] again"
    assert result.error
    assert result.error.code == "exhausted"
    assert (
        result.error.message
        == "[Info] Reached max internal steps (3); the last agent requested another step with: again"
    )
    assert len(stage.asked()) == 3


def test_a_reroute_without_an_input_routes_the_same_again(stage: Stage) -> None:
    stage.script({**chosen("math"), "times": 1}, chosen("poet"), {"match": "^math", "reply": "[REROUTE]"})
    assert stage.ask("hello").output == "echo: poet <hello>"


def test_an_agent_that_fails_fails_the_turn(stage: Stage) -> None:
    stage.script(chosen("math"), {"match": "^math", "status": 401, "reply": "no"})
    result = stage.ask()
    assert result.status == "failed"
    assert result.error
    assert result.error.message.startswith("Sorry, agent math encountered an error: ")


def test_an_agent_with_several_instructions_may_be_chosen(stage: Stage) -> None:
    twice = Agent(model=MODEL, description="twice", instructions=["one <{input}>", "two <{input}>"])
    stage.script(chosen("math"), {"match": "^two", "reply": "[FINAL] both"})
    assert stage.ask(agents={"math": twice}).output == "both"


# --- plans and steps ------------------------------------------------------------------------------------------------


def plan(*agents: str, **more: Any) -> dict[str, Any]:
    return {"route": json.dumps({"plan": list(agents), **more})}


def test_a_plan_is_followed(stage: Stage) -> None:
    stage.script(plan("math", "poet", "math", initial_input="start"), {"match": "^poet", "reply": "verse"})
    assert stage.ask(strategy="static_plan").output == "echo: math <verse>"
    assert stage.asked() == ["math <start>", "poet <echo: math <start>>", "math <verse>"]


def test_a_final_answer_ends_the_plan(stage: Stage) -> None:
    stage.script(plan("math", "poet"), {"match": "^math", "reply": "[FINAL] enough"})
    assert stage.ask(strategy="static_plan").output == "enough"


def test_a_reroute_in_a_plan_asks_the_same_agent_again_then_flows_on(stage: Stage) -> None:
    stage.script(plan("math", "poet"), {"match": "^math", "reply": "[REROUTE] more"})
    assert stage.ask(strategy="static_plan", max_internal_steps=2).output == "echo: poet <[REROUTE] more>"
    assert stage.asked() == ["math <hello>", "math <more>", "poet <[REROUTE] more>"]


def test_a_plan_that_fails_tells_where(stage: Stage) -> None:
    stage.script(plan("math", "poet"), {"match": "^poet", "status": 401, "reply": "no"})
    result = stage.ask(strategy="static_plan")
    assert result.error
    assert result.error.message.startswith("Plan failed at step 2 (poet): ")


@pytest.mark.parametrize("reply", ['{"plan": []}', '{"plan": ["math", "bard"]}', "none", '{"plan": "math"}'])
def test_a_bad_plan_fails_the_turn(stage: Stage, reply: str) -> None:
    stage.script({"route": reply})
    result = stage.ask(strategy="static_plan")
    assert result.error
    assert result.error.message.startswith("Error: Could not determine execution plan. ")
    assert len(stage.routed()) == 2


def step(agent: str, asked: str) -> str:
    return json.dumps({"next_action": "call_agent", "agent_name": agent, "agent_input": asked})


def test_a_router_may_decide_after_each_agent(stage: Stage) -> None:
    stage.script(
        {"route": step("math", "1 + 1"), "match": "last step gave:\nNothing has been done yet."},
        {"match": "^math <1 . 1>$", "reply": "2"},
        {"route": step("poet", "a poem about 2"), "match": "last step gave:\n2"},
        {"match": "^poet", "reply": "two is company"},
        {"route": json.dumps({"next_action": "final_answer", "final_answer": "done: two"}), "match": "two is company"},
    )
    result = stage.ask("what rhymes", strategy="dynamic_decomposition")
    assert (result.output, result.agents) == ("done: two", ["math", "poet"])
    assert all("The user says:\nwhat rhymes" in prompt for prompt in stage.routed())


def test_a_router_that_never_ends_uses_up_the_steps(stage: Stage) -> None:
    stage.script({"route": step("math", "go on")}, {"match": "^math", "reply": "not yet"})
    result = stage.ask(strategy="dynamic_decomposition", max_internal_steps=2)
    assert (result.status, result.output) == ("exhausted", "not yet")
    assert len(stage.asked()) == 2


def test_a_bad_next_step_fails_the_turn(stage: Stage) -> None:
    stage.script({"route": '{"next_action": "dance"}'})
    result = stage.ask(strategy="dynamic_decomposition")
    assert result.error
    assert result.error.message == (
        "Sorry, an error occurred while determining the next step: 'next_action' must be 'call_agent' or 'final_answer', not \"dance\""
    )


def test_a_default_agent_that_answers_for_a_router_after_each_agent_ends_the_turn(stage: Stage) -> None:
    stage.script({"route": step("math", "1 + 1"), "times": 1}, {"route": "hm"})
    result = stage.ask(strategy="dynamic_decomposition", default_agent="clerk")
    assert (result.status, result.agents) == ("succeeded", ["math", "clerk"])
    assert len(stage.routed()) == 3


def test_a_default_agent_is_one_of_the_agents_that_may_run(stage: Stage) -> None:
    stage.script({"route": step("math", "1 + 1"), "times": 1}, {"route": "hm"}, {"match": "^math", "reply": "2"})
    result = stage.ask(strategy="dynamic_decomposition", default_agent="clerk", max_internal_steps=1)
    assert (result.status, result.output) == ("exhausted", "2")


def test_without_a_router_the_default_agent_answers_whatever_the_strategy(stage: Stage) -> None:
    assert (
        stage.ask(strategy="dynamic_decomposition", router=None, default_agent="clerk").output == "echo: clerk <hello>"
    )
    assert len(stage.asked()) == 1


# --- round robin ----------------------------------------------------------------------------------------------------


def test_agents_take_turns(stage: Stage) -> None:
    session = f"s{next(names)}"
    agents = [stage.ask("x", session=session, mode="round_robin").agents[0] for _ in range(4)]
    assert agents == ["math", "poet", "clerk", "math"]


def test_an_agent_that_fails_uses_its_turn(stage: Stage) -> None:
    session = f"s{next(names)}"
    stage.script({"match": "^math", "status": 401, "reply": "no"})
    result = stage.ask("x", session=session, mode="round_robin")
    assert result.error
    assert result.error.message.startswith("Round robin agent math failed: ")
    assert stage.ask("x", session=session, mode="round_robin").agents == ["poet"]


def test_turns_at_once_never_share_a_place(stage: Stage) -> None:
    client = stage.client(mode="round_robin", agents={"math": Agent(model=MODEL)})
    runs = [client.submit_turn("x", team="team", labels={"tenant": "turns"}) for _ in range(30)]
    counts = [run.result(30).agents[0] for run in runs]
    assert {name: counts.count(name) for name in NAMES} == dict.fromkeys(NAMES, 10)


# --- the conversation -----------------------------------------------------------------------------------------------


def test_the_router_and_its_agent_are_told_what_was_said(stage: Stage) -> None:
    session = f"s{next(names)}"
    stage.script(chosen("poet"), {"match": "first", "reply": "[FINAL] verse one"})
    stage.ask("first", session=session)
    stage.ask("second", session=session)
    assert "Conversation so far:\nUser: first\nAssistant: verse one\n" in stage.routed()[1]
    assert stage.requests(MODEL)[1]["body"]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "verse one"},
        {"role": "user", "content": "poet <second>"},
    ]


def test_a_pipeline_is_not_told_unless_it_asks_for_it(stage: Stage) -> None:
    session = f"s{next(names)}"
    stage.ask("first", session=session, mode="pipeline")
    stage.ask("second", session=session, mode="pipeline", auto_include_history=True)
    silent, told = stage.requests(MODEL)[0], stage.asked()[3]
    assert len(silent["body"]["messages"]) == 1
    assert told.startswith("math <Conversation History:\nUser: first\nAssistant: echo: clerk <")
    assert told.endswith("\n\nCurrent Input:\nsecond>")


def test_an_agents_own_settings_say_what_it_sees(stage: Stage) -> None:
    session = f"s{next(names)}"
    blind = Agent.model_validate(
        {"model": MODEL, "description": "x", "instructions": ["math <{input}>"], "history": {"enabled": False}}
    )
    brief = Agent.model_validate(
        {"model": MODEL, "description": "x", "instructions": ["poet <{input}>"], "history": {"max_entries": 1}}
    )
    agents = {"math": blind, "poet": brief}
    stage.ask("first", session=session, agents=agents, mode="round_robin")
    stage.ask("second", session=session, agents=agents, mode="round_robin")
    stage.ask("third", session=session, agents=agents, mode="round_robin")
    stage.ask("fourth", session=session, agents=agents, mode="round_robin")
    told = [len(request["body"]["messages"]) for request in stage.requests(MODEL)]
    assert told == [1, 3, 5, 1], (
        "what poet is shown is math's answer alone, behind a line that its question is left out"
    )


def test_history_may_be_sent_to_an_agent_directly(stage: Stage) -> None:
    client, session = stage.client(), f"s{next(names)}"
    client.submit_turn("first", agent="math", session=session).result(30)
    result = client.submit_turn("second", agent="poet", session=session, send_history=True).result(30)
    assert (
        result.output
        == "echo: poet <Conversation History:\nUser: first\nAssistant: echo: math <first>\n\nCurrent Input:\nsecond>"
    )
    entries = [(entry.role, entry.agent) for entry in client.sessions.history(session)]
    assert entries == [("user", None), ("assistant", "math"), ("user", None), ("assistant", "poet")]


def test_turns_of_a_session_at_once_run_in_order(stage: Stage) -> None:
    client, session = stage.client(), f"s{next(names)}"
    stage.script({"match": "zero", "delay_s": 0.5, "reply": "[FINAL] ok"})
    texts = ["zero", "one", "two", "three"]
    runs = [client.submit_turn(text, agent="clerk", session=session) for text in texts]
    assert [run.result(30).status for run in runs] == ["succeeded"] * 4
    said = [entry.content for entry in client.sessions.history(session) if entry.role == "user"]
    assert said == texts
    sizes = [len(request["body"]["messages"]) for request in stage.requests(MODEL)]
    assert sizes == [1, 3, 5, 7]


def test_a_cancelled_turn_lets_the_next_one_run(stage: Stage) -> None:
    client, session = stage.client(), f"s{next(names)}"
    stage.script({"match": "slow", "delay_s": 20, "reply": "late"})
    first = client.submit_turn("slow", agent="clerk", session=session)
    second = client.submit_turn("quick", agent="clerk", session=session)
    until(lambda: stage.asked(), "the first turn")
    first.cancel()
    assert second.result(40).output == "echo: clerk <quick>"


@pytest.fixture
def steps_of(client: EmbeddedClient) -> Callable[[RunResult], list[str]]:
    return lambda result: sorted(client.ledger.reader.read(result.run_id).steps)


def test_each_decision_is_a_step(stage: Stage, steps_of: Callable[[RunResult], list[str]]) -> None:
    stage.script(
        {**chosen("math"), "match": "says:\nhello"},
        {"match": "^math", "reply": "[REROUTE] more"},
        {"route": "hm", "match": "says:\nmore", "times": 1},
        {**chosen("poet"), "match": "cannot be used"},
    )
    result = stage.ask(rules=[TeamRule(match="^never$", agent="clerk")])
    assert steps_of(result) == sorted(
        [
            "@start",
            "@rules",
            "@router",
            "@route",
            "math",
            "@reply.math",
            "@rules.2",
            "@router.2",
            "@route.2",
            "@router.2.again",
            "@route.2.again",
            "poet.2",
            "@reply.poet.2",
        ]
    )
