"""An AgentChain is what a configuration would say, and what does not fit together is told when it is built."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cantata import AgentChain, ConfigError, PromptChain
from cantata.flows.definitions import History, Model, Router, Synthesizer, Team, TeamRule
from cantata.flows.instructions import NestedStep

GPT = "openai/gpt-4o-mini"
NAME = f"{__name__}:"
TEMPLATE = 'Choose for {user_input}: {"chosen_agent": "<agent_name>"}'
ROUTER = {"models": [GPT], "instructions": [None, "{input}"], "decision_prompt_template": TEMPLATE}
DESCRIPTIONS = {"ann": "adds", "bob": "writes"}


async def choose(user_input: str, history: list[dict[str, str]], agent_descriptions: dict[str, str]) -> str:
    return '{"chosen_agent": "ann"}'


def choose_at_once(
    user_input: str, history: list[dict[str, str]], agent_descriptions: dict[str, str]
) -> dict[str, str]:
    return {"chosen_agent": "ann"}


def choose_blindly(user_input: str) -> str:
    return ""


def is_long(text: str) -> bool:
    return len(text) > 100


def look_up(word: str) -> str:
    return word


def agents(*names: str) -> dict[str, PromptChain]:
    return {name: PromptChain([GPT], [f"{name}: {{input}}"]) for name in names or ("ann", "bob")}


def chain(**given: Any) -> AgentChain:
    return AgentChain(**{"agents": agents(), "agent_descriptions": DESCRIPTIONS, "router": ROUTER, **given})


def team_of(made: AgentChain) -> Team:
    return made.definitions.teams["team"]


# What it is


def test_a_chain_is_a_team_of_its_agents() -> None:
    made = chain(max_internal_steps=5, max_history_tokens=100, default_agent="bob", auto_include_history=True)

    assert team_of(made) == Team(
        mode="router",
        agents=["ann", "bob"],
        router=Router(models=[GPT], decision_prompt_template=TEMPLATE),
        default_agent="bob",
        max_internal_steps=5,
        max_history_tokens=100,
        auto_include_history=True,
        strategy="single_agent_dispatch",
        rules=[],
    )
    assert {name: (agent.description, agent.instructions) for name, agent in made.definitions.agents.items()} == {
        "ann": ("adds", ["ann: {input}"]),
        "bob": ("writes", ["bob: {input}"]),
    }


def test_the_same_chain_has_the_same_definitions() -> None:
    assert chain().definitions == chain().definitions


@pytest.mark.parametrize("mode", ["pipeline", "round_robin", "round-robin", "broadcast"])
def test_other_modes_need_no_router(mode: str) -> None:
    assert team_of(chain(router=None, execution_mode=mode)).mode == mode.replace("-", "_")


def test_extra_keys_of_a_router_are_parameters_of_its_model() -> None:
    model = {"name": "openai/gpt-4o", "params": {"max_tokens": 50}}

    router = team_of(chain(router={**ROUTER, "models": [model], "temperature": 0, "timeout_s": 5})).router

    assert router is not None
    assert router.models == [Model(model="openai/gpt-4o", params={"max_tokens": 50})]
    assert (router.params, router.timeout_s) == ({"temperature": 0}, 5)


@pytest.mark.parametrize(
    ("template", "read"),
    [
        ("For '{input}', the name:", "For '{user_input}', the name:"),
        ("{user_input} {input}", "{user_input} {input}"),
        ("{input}", "{user_input}"),
    ],
)
def test_the_template_of_a_router_may_call_the_text_input(template: str, read: str) -> None:
    assert team_of(chain(router={**ROUTER, "decision_prompt_template": template})).router == Router(
        models=[GPT], decision_prompt_template=read
    )


@pytest.mark.parametrize("function", [choose, choose_at_once])
def test_a_router_may_be_a_function_with_or_without_async(function: Any) -> None:
    assert team_of(chain(router=function)).router == Router(function=f"{NAME}{function.__name__}")


def test_rules_are_patterns_and_functions() -> None:
    made = chain(rules=[(r"(?i)\bsum\b", "ann"), (is_long, "bob"), choose_blindly])

    assert team_of(made).rules == [
        TeamRule(match=r"(?i)\bsum\b", agent="ann"),
        TeamRule(function=f"{NAME}is_long", agent="bob"),
        TeamRule(function=f"{NAME}choose_blindly"),
    ]


def test_a_strategy_has_its_own_template() -> None:
    router = {**ROUTER, "decision_prompt_templates": {"static_plan": "Plan {user_input}"}}
    del router["decision_prompt_template"]

    assert team_of(chain(router=router, router_strategy="static_plan")).strategy == "static_plan"
    with pytest.raises(ValueError, match="there is no template for the strategy 'dynamic_decomposition'"):
        chain(router=router, router_strategy="dynamic_decomposition")


def test_a_synthesizer_merges_a_broadcast() -> None:
    config = {"model": GPT, "prompt": "Merge {agent_responses}", "params": {"temperature": 0}}

    made = chain(router=None, execution_mode="broadcast", synthesizer_config=config)

    assert team_of(made).synthesizer == Synthesizer(
        model=GPT, prompt="Merge {agent_responses}", params={"temperature": 0}
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"prompt": "{agent_responses}"}, "synthesizer_config has no 'model'"),
        ({"model": GPT}, "synthesizer_config has no 'prompt'"),
        ({"model": GPT, "prompt": "Merge"}, "has no '{agent_responses}'"),
        ([], ""),
    ],
)
def test_with_an_invalid_synthesizer_the_answers_stand_unmerged(
    config: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = chain(router=None, execution_mode="broadcast", synthesizer_config=config)

    assert team_of(made).synthesizer is None
    assert said in caplog.text


def test_what_the_mode_does_not_use_is_said(caplog: pytest.LogCaptureFixture) -> None:
    chain(
        execution_mode="pipeline",
        max_internal_steps=3,
        synthesizer_config={"model": GPT, "prompt": "{agent_responses}"},
    )

    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert "router is used in mode 'router' only, and this is 'pipeline'" in told[0]
    assert "synthesizer_config is used in mode 'broadcast' only" in told[1]


def test_what_has_no_effect_here_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "route.txt").write_text(TEMPLATE)
    router = {**ROUTER, "decision_prompt_template": "route.txt", "additional_prompt_dirs": [str(tmp_path)]}

    made = chain(
        router={**router, "verbose": True, "store_steps": True, "mcp_servers": None, "temperature": 0},
        cache_config={"name": "mine", "path": str(tmp_path)},
        use_supervisor=False,
        supervisor_strategy="adaptive",
        activity_logger=None,
        agent_history_configs={"ann": {"include_types": ["user_input", "tool_call"]}},
    )

    assert team_of(made).router == Router(models=[GPT], decision_prompt_template=TEMPLATE, params={"temperature": 0})
    assert made.session == "mine"
    told = [
        record.getMessage().removeprefix("warning message=")
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    assert told == [
        "\"router: 'verbose' has no effect, since a router is one model call\"",
        "\"router: 'store_steps' has no effect, since a router is one model call\"",
        "\"agent_history_configs['ann']: a conversation has no messages of the type 'tool_call'\"",
        "\"AgentChain: the parameter 'activity_logger' is not known, and has no effect\"",
        "\"cache_config: 'path' has no effect: conversations are stored in Redis; 'name' is the session\"",
    ]


@pytest.mark.parametrize(
    ("config", "history"),
    [
        ({"include_types": ["user_input", "agent_output"], "exclude_sources": None}, History(enabled=True)),
        ({"include_types": None, "exclude_sources": ["system", "bob"]}, History(enabled=True, exclude_sources=["bob"])),
        (
            {"include_types": ["agent_output", "error"]},
            History(enabled=True, include_types=["assistant", "system_error"]),
        ),
        (
            {"include_types": ["agent_output", "error"], "exclude_sources": ["system"]},
            History(enabled=True, include_types=["assistant"]),
        ),
        ({"exclude_sources": ["user"]}, History(enabled=True, include_types=["assistant"])),
        ({"enabled": False, "max_tokens": 0, "max_entries": 0}, History(enabled=False)),
        ({"enabled": True, "max_entries": 0}, History(enabled=False)),
    ],
)
def test_history_settings_are_read_as_agentchain_writes_them(config: dict[str, Any], history: History) -> None:
    made = chain(agent_history_configs={"ann": config})

    assert made.definitions.agents["ann"].history == history
    assert made.agent_history_configs == {"ann": config}


def test_its_settings_can_be_read() -> None:
    made = chain(router_strategy="static_plan", auto_include_history=True)

    assert (made.execution_mode, made.router_strategy, made.auto_include_history) == ("router", "static_plan", True)


def test_agents_see_of_the_conversation_what_their_settings_say() -> None:
    settings = {
        "ann": {"max_tokens": 9, "truncation_strategy": "keep_last", "exclude_sources": ["bob"]},
        "bob": {"enabled": False},
    }

    found = chain(agent_history_configs=settings).definitions.agents

    assert found["ann"].history == History(
        enabled=True, max_tokens=9, truncation_strategy="keep_last", exclude_sources=["bob"]
    )
    assert found["bob"].history == History(enabled=False)


def test_chains_within_agents_are_agents_too() -> None:
    inner = PromptChain([GPT], ["inner {input}"])

    made = chain(agents={"ann": PromptChain([GPT], [inner, "outer {input}"]), **agents("bob")})

    assert list(made.definitions.agents) == ["ann", "ann.1", "bob"]
    assert made.definitions.agents["ann"].instructions[0] == NestedStep(agent="ann.1")
    assert team_of(made).agents == ["ann", "bob"]


def test_prompts_in_files_are_looked_for_in_the_folders_given(tmp_path: Path) -> None:
    for name, text in {"ask.md": "Ask: {input}", "route.txt": TEMPLATE}.items():
        (tmp_path / name).write_text(text)
    own = {"ann": PromptChain([GPT, GPT], ["ask.md", ("ask.md", [])]), **agents("bob")}

    made = chain(
        agents=own, router={**ROUTER, "decision_prompt_template": "route.txt"}, additional_prompt_dirs=[str(tmp_path)]
    )

    first, second = made.definitions.agents["ann"].instructions
    assert (first, getattr(second, "prompt", None)) == ("Ask: {input}", "Ask: {input}")
    assert team_of(made).router == Router(models=[GPT], decision_prompt_template=TEMPLATE)


# The conversation


def test_the_conversation_has_a_name_that_is_made_up_if_it_is_not_given() -> None:
    assert chain(session="mine").session == "mine"
    assert chain(cache_config={"name": "mine"}).session == "mine"
    assert chain().session != chain().session


# What does not fit


def test_a_router_that_no_worker_could_import_is_refused() -> None:
    with pytest.raises(ConfigError, match="a lambda has no name"):
        chain(router=lambda user_input, history, agent_descriptions: "")


def test_a_tool_that_is_another_in_another_agent_is_refused() -> None:
    own = agents()
    for name, agent in own.items():
        agent.add_tools([{"name": "look_up", "description": name}])
        agent.register_tool_function(look_up)

    with pytest.raises(ConfigError, match="tool 'look_up' is one function in agent 'ann' and another in agent 'bob'"):
        _ = chain(agents=own).definitions


def test_agents_may_share_a_tool() -> None:
    own = agents()
    for agent in own.values():
        agent.register_tool_function(look_up)

    definitions = chain(agents=own).definitions

    assert (list(definitions.tools), definitions.agents["bob"].tools) == (["look_up"], ["look_up"])


def test_an_agent_is_not_called_as_the_chain_within_another() -> None:
    own = {"ann": PromptChain([GPT], [PromptChain([GPT], ["a"]), "b"]), **agents("ann.1")}

    with pytest.raises(ConfigError, match=r"agent 'ann\.1' has the name of the chain within"):
        _ = chain(agents=own, agent_descriptions={"ann": "", "ann.1": ""}).definitions


# Agents that come and go


def test_agents_come_and_go() -> None:
    made = chain(agent_history_configs={"ann": {"max_tokens": 5}})

    made.add_agent("cleo", PromptChain([GPT], ["cleo: {input}"]), "knows")
    made.remove_agent("ann")

    assert list(made.agents) == ["bob", "cleo"]
    assert dict(made.agent_descriptions) == {"bob": "writes", "cleo": "knows"}
    assert team_of(made).agents == ["bob", "cleo"]
    with pytest.raises(ValueError, match="there is an agent 'bob' already"):
        made.add_agent("bob", PromptChain([GPT], ["a"]), "")
    with pytest.raises(ValueError, match="remove_agent: there is no agent 'ann'"):
        made.remove_agent("ann")


def test_an_agent_that_is_needed_does_not_go() -> None:
    made = chain(default_agent="bob")

    with pytest.raises(ValueError, match="default_agent: 'bob' is not an agent of the team"):
        made.remove_agent("bob")
    assert list(made.agents) == ["ann", "bob"]


def test_without_agents_nobody_answers() -> None:
    made = chain(router=None, execution_mode="round_robin")
    for name in DESCRIPTIONS:
        made.remove_agent(name)

    with pytest.raises(ValueError, match=r"No agents configured for round_robin\."):
        asyncio.run(made.process_input("hi"))


def test_the_agents_are_not_changed_behind_its_back() -> None:
    given: Mapping[str, PromptChain] = agents()
    made = chain(agents=given)

    with pytest.raises(TypeError):
        made.agents["eve"] = given["ann"]  # type: ignore[index]


# Turns


@pytest.mark.parametrize(
    ("text", "said"), [("", r"Input cannot be empty\."), (" \n", "cannot be empty"), (3, "the input is a text, not 3")]
)
def test_what_is_no_text_is_refused_before_anything_runs(text: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asyncio.run(chain().process_input(text))
    with pytest.raises(ValueError, match=said):
        asyncio.run(chain().run_agent_direct("ann", text))


def test_an_unknown_agent_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="there is no agent 'eve'; the agents are 'ann', 'bob'"):
        asyncio.run(chain().run_agent_direct("eve", "hi"))
