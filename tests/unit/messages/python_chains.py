"""Parts of an AgentChain or a PromptChain that do not fit together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cantata import AgentChain, AgenticStepProcessor, PromptChain
from cantata_frontends.chainbuilder import plan
from cantata_frontends.chainbuilder.builder_arguments import read_base
from cantata_frontends.chainbuilder.plan import BuilderBase, BuilderPlan, ChainParts
from cantata_frontends.promptchain.toolbox import Toolbox
from tests.unit.messages.entries import Entry, entries, said_by

GPT = "openai/gpt-4o-mini"
TEMPLATE = 'Choose for {user_input}: {"chosen_agent": "<agent_name>"}'
ROUTER = {"models": [GPT], "instructions": [None, "{input}"], "decision_prompt_template": TEMPLATE}
DESCRIPTIONS = {"ann": "adds", "bob": "writes"}


async def choose(user_input: str, history: list[dict[str, str]], agent_descriptions: dict[str, str]) -> str:
    return '{"chosen_agent": "ann"}'


def choose_blindly(user_input: str) -> str:
    return ""


def clean(text: str) -> str:
    return text.strip()


def shorten(length: Any, text: str = "", **more: Any) -> str:
    return text[:length]


def stop(step: int, output: str) -> tuple[bool, str, str | None]:
    return False, "", None


def agents(*names: str) -> dict[str, PromptChain]:
    return {name: PromptChain([GPT], [f"{name}: {{input}}"]) for name in names or ("ann", "bob")}


AGENT_CHAINS: dict[str, list[dict[str, Any]]] = {
    "names of conversations": [
        {"cache_config": {"nmae": "x"}},
        {"session": "a", "cache_config": {"name": "b"}},
        {"session": "a\nb"},
        {"session": " "},
    ],
    "parts that do not fit": [
        {"agents": {}},
        {"agents": None},
        {"agent_descriptions": None},
        {"agent_descriptions": {"ann": "adds"}},
        {"agent_descriptions": {**DESCRIPTIONS, "bbo": "?"}},
        {"agent_descriptions": {**DESCRIPTIONS, "bob": None}},
        {"agents": {"": PromptChain(GPT, ["a"])}},
        {"agents": {"a/b": PromptChain(GPT, ["a"])}},
        {"agents": {"@a": PromptChain(GPT, ["a"])}},
        {"agents": {"ann": PromptChain(GPT, ["a"], timeout_s=5)}},
        {"execution_mode": "rooter"},
        {"execution_mode": "supervisor"},
        {"router": None},
        {"router": {}},
        {"router": {**ROUTER, "models": [GPT, GPT]}},
        {"router": {**ROUTER, "models": []}},
        {"router": {**ROUTER, "instructions": ["{input}"]}},
        {"router": {**ROUTER, "instructions": ["a", "{input}"]}},
        {"router": {**ROUTER, "instructions": [None, None]}},
        {"router": {**ROUTER, "decision_prompt_template": None}},
        {"router": {**ROUTER, "decision_prompt_template": {}}},
        {"router": {**ROUTER, "decision_prompt_templates": "x"}},
        {"router": {**ROUTER, "decision_prompt_templates": {"statik_plan": "x"}}},
        {"router": {**ROUTER, "decision_promt_template": "x"}},
        {"router": {**ROUTER, "custom_router_function": choose}},
        {"router": {**ROUTER, "mcp_servers": [{"id": "x"}]}},
        {"router": {**ROUTER, "api_key": "sk"}},
        {"router": {**ROUTER, "step_timeout_s": 5}},
        {"agent_history_configs": {"ann": {"exclude_sources": "bob"}}},
        {"agent_history_configs": {"ann": {"include_types": "user_input"}}},
        {"agent_history_configs": {"ann": {"max_entries": True}}},
        {
            "agents": agents("ann", "user"),
            "agent_descriptions": {"ann": "", "user": ""},
            "agent_history_configs": {"ann": {"exclude_sources": ["user"]}},
        },
        {"router_strategy": "plan"},
        {"default_agent": "eve"},
        {"max_internal_steps": 0},
        {"max_history_tokens": 0},
        {"timeout_s": 0},
        {"rules": ["ann"]},
        {"rules": [("(", "ann")]},
        {"rules": [("a", "eve")]},
        {"additional_prompt_dirs": ["no/where"]},
        {"agent_history_configs": {"eve": {}}},
        {"agent_history_configs": {"ann": {"max_token": 5}}},
        {"agent_history_configs": {"ann": {"truncation_strategy": "some"}}},
        {"agent_history_configs": {"ann": {"exclude_sources": ["eve"]}}},
    ],
    "wrong kinds": [
        {"router": "module:function"},
        {"router": dict},
        {"router": choose_blindly},
        {"agents": {"ann": "a chain"}},
        {"use_supervisor": True},
        {"execution_mod": "router"},
    ],
}

PROMPT_CHAINS: dict[str, list[dict[str, Any]]] = {
    "parts of a PromptChain": [
        {"models": [], "instructions": ["{input}"]},
        {"models": [GPT, "openai/gpt-4o"], "instructions": ["a", "b", "c"]},
        {"models": [GPT, "openai/gpt-4o"], "instructions": [clean]},
        {"models": [GPT], "instructions": "x {input}"},
        {"models": [GPT], "instructions": None},
        {"models": [GPT], "instructions": ["a"], "chainbreakers": stop},
        {"models": [GPT], "instructions": []},
        {"models": [""], "instructions": ["a"]},
        {"models": [3], "instructions": ["a"]},
        {"models": [{"name": GPT, "parms": {}}], "instructions": ["a"]},
        {"models": [{"name": GPT, "params": {"api_key": "sk"}}], "instructions": ["a"]},
        {"models": [], "instructions": [None]},
        {"models": [GPT], "instructions": [PromptChain(GPT, ["a"], timeout_s=5)]},
        {"models": [], "instructions": [AgenticStepProcessor("Find it")]},
        {"models": [GPT], "instructions": ["a"], "additional_prompt_dirs": "no/where"},
        {"models": [GPT], "instructions": ["a"], "additional_prompt_dirs": ["no/where"]},
        {"models": [GPT], "instructions": ["file: none.md"]},
        {"models": [GPT], "instructions": ["a"], "timeout_s": 0},
        {"models": [GPT], "instructions": ["a"], "step_timeout_s": 0},
    ],
}

PARTIALS: dict[str, list[Any]] = {
    "partials": [
        partial(shorten, object()),
        partial(shorten, (1, 2)),
        partial(shorten, token="sk"),
        partial(lambda text: text),
        partial(stop, step=1),
    ],
}


SERVERS: dict[str, list[dict[str, Any]]] = {
    "MCP servers": [
        {"command": "x"},
        {"id": "a"},
        {"id": "a", "type": "sse", "url": "https://a.b/"},
        {"id": "a", "comand": "x"},
        {"id": "a", "command": "x", "env": {"SET_NOWHERE": "1"}},
        {"id": "a", "url": "https://a.b/", "headers": {"A": "Bearer x"}},
    ],
}

ADDED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "chains of a builder": [
        ("a", {}),
        ("b", {"needs": ["c"]}),
        ("b", {"needs": ["b"]}),
        ("b", {"mode": "seriel"}),
        ("b", {"group": " "}),
        ("b c", {}),
        ("input", {}),
        ("x" * 101, {}),
    ],
}

BASES: dict[str, list[tuple[Any, Any, Any, Any]]] = {
    "the base of a builder": [
        (GPT, "Analyze", "normal", 60),
        (GPT, "{input}", "headtail", 60),
        ({"nam": GPT}, "{input}", "normal", 60),
        (GPT, "{input}", "normal", 0),
    ],
}


def found() -> Iterator[Entry]:
    """Build each of them."""
    sound: dict[str, Any] = {"agents": agents(), "agent_descriptions": DESCRIPTIONS, "router": ROUTER}
    yield from entries(AGENT_CHAINS, lambda given: _built(lambda: AgentChain(**{**sound, **given})), _shown)
    yield from entries(PROMPT_CHAINS, lambda given: _built(lambda: PromptChain(**given)), _shown)
    yield from entries(SERVERS, lambda server: _built(lambda: Toolbox([server])), _shown)
    yield from entries(ADDED, lambda given: _built(lambda: _added(given[0], **given[1])), _shown)
    yield from entries(BASES, lambda given: _built(lambda: read_base(*given)), _shown)
    yield from entries(PARTIALS, lambda given: _built(lambda: PromptChain([], [given])), _shown)


def _added(chain_id: str, *, mode: Any = "serial", group: str = "default", needs: Sequence[str] = ()) -> object:
    base = BuilderPlan(base=BuilderBase(model=GPT, instruction="{instruction}"))
    one = plan.create(
        base, "a", ChainParts(instructions=["a {input}"]), mode="serial", group="default", dependencies=[]
    )
    return plan.create(one, chain_id, ChainParts(instructions=["{input}"]), mode=mode, group=group, dependencies=needs)


def _built(build: Callable[[], object]) -> list[str]:
    return [
        re.sub(r"(is not in )/.*", r"\1{folders}", _repeatable(line)) for line in said_by(build, ValueError, TypeError)
    ]


def _shown(given: object) -> str:
    return _repeatable(repr(given)).replace(repr(TEMPLATE), "TEMPLATE")


def _repeatable(shown: str) -> str:
    """Return what `repr` shows of objects without their addresses."""
    return re.sub(r"<(?:function )?(?:\w+\.)*([\w<>]+?)(?: object)? at 0x[0-9a-f]+>", r"\1", shown)
