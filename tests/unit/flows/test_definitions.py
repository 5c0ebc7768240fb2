"""Definitions: options that exclude or need each other, and what a name stands for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.flows.definitions import Agent, Definitions, Limits, McpServer, Model, Quota, Router, Team, Tool, mcp_tool

SERVER = {"command": ["s"]}
SCHEMA = {"type": "object", "properties": {"x": {}}}
TEAM = {"mode": "router", "agents": ["a", "b"]}


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        ("tools", {}, "a tool is either a 'function', a 'task' or an 'mcp' server, or it 'asks' people"),
        ("tools", {"function": "m:f", "mcp": SERVER}, "a tool is either a 'function', a 'task' or an 'mcp' server"),
        ("tools", {"asks": True}, "a tool that 'asks' people needs 'parameters'"),
        ("tools", {"mcp": SERVER, "hidden": ["x"]}, "'hidden' belongs to a function"),
        ("tools", {"function": "m:f", "at_most_once": True, "retries": 1}, "'at_most_once' means that a call is never repeated"),
        ("tools", {"function": "m:f", "parameters": {"type": "array"}}, "'parameters' is the JSON schema of an object"),
        ("tools", {"function": "m:f", "parameters": SCHEMA, "values": {"x": 1}}, "'x' is hidden from models, but 'parameters' shows it"),
        ("tools", {"mcp": {}}, "an MCP server is either a 'command' or a 'url'"),
        ("tools", {"mcp": {**SERVER, "headers": {"A": "B"}}}, "'headers' belongs to a server with 'url'"),
        ("tools", {"mcp": {"url": "http://localhost", "env": ["A"]}}, "'env' belongs to a server with 'command'"),
        ("tools", {"mcp": {"url": "http://me:secret@localhost"}}, "'url' must be http:// or https:// and without a password"),
        ("tools", {"mcp": {**SERVER, "env": ["not a name"]}}, "'env' and 'headers' name environment variables"),
        ("commands", {"command": ["x"], "env": ["sk-123"]}, "expected the name of an environment variable"),
        ("agents", {"model": "m", "models": ["n"]}, "give 'model' or 'models', not both"),
        ("agents", {"models": ["m", "n"], "instructions": ["a", "b", "c"]}, "there are 2 models for 3 texts"),
        ("agents", {"output": {}}, "give a 'schema' or a 'class', one of them"),
        ("agents", {"queue": "gpu:large"}, "a queue's name has letters from A to Z"),
        ("teams", {**TEAM, "min_responses": 1}, "'min_responses' belongs to mode 'broadcast', not 'router'"),
        ("teams", {"mode": "broadcast", "agents": ["a"], "min_responses": 2}, "'min_responses' is 2 but the team has 1 agents"),
        ("teams", {**TEAM, "strategy": "static_plan", "rules": [{"match": "x", "agent": "a"}]}, "'rules' choose one agent"),
        ("teams", {**TEAM, "agents": ["a", "a"]}, "an agent is named twice in a router"),
        ("teams", {**TEAM, "default_agent": "c"}, "default_agent: 'c' is not an agent of the team, which has 'a', 'b'"),
        ("teams", {**TEAM, "rules": [{"match": "(", "agent": "a"}]}, "'match' is not a regular expression"),
        ("teams", {**TEAM, "rules": [{"match": "x"}]}, "a rule with 'match' names the 'agent' that it chooses"),
        ("teams", {**TEAM, "router": {"function": "m:f", "params": {"t": 1}}}, "a router is either a 'function' or a model"),
        ("teams", {**TEAM, "router": {"instructions": ["x"]}}, "'instructions' is [null, text]"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(section: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Definitions.model_validate({section: {"n": fields}})

    assert message in refused.value.errors()[0]["msg"]


def test_a_secret_in_the_environment_s_place_is_not_quoted() -> None:
    with pytest.raises(ValidationError) as refused:
        Definitions.model_validate({"commands": {"c": {"command": ["x"], "env": ["sk-very-secret"]}}})

    assert "sk-very-secret" not in refused.value.errors(include_input=False)[0]["msg"]


def test_calls_of_a_server_wait_among_the_agents_and_functions_among_the_tools() -> None:
    assert (Tool(mcp=McpServer(command=["s"])).queue, Tool(function="m:f").queue) == ("agents", "tools")


def test_lists_that_are_left_out_are_no_two_agents_same_list() -> None:
    one, other = Agent(), Agent()

    assert (one.instructions, one.history.include_types) == (["{input}"], ["user", "assistant"])
    assert one.instructions is not other.instructions


def test_the_template_of_a_strategy_comes_before_the_common_one() -> None:
    router = Router(decision_prompt_template="any", decision_prompt_templates={"static_plan": "plan"})

    assert (router.template("static_plan"), router.template("single_agent_dispatch")) == ("plan", "any")


def test_parameters_with_a_fixed_value_are_hidden_too() -> None:
    assert Tool(function="m:f", hidden=["a"], values={"b": 1}).unseen == {"a", "b"}
    assert Team.model_validate({"mode": "round-robin", "agents": ["a"]}).mode == "round_robin"


def test_a_model_is_found_by_its_name_or_is_one_of_litellm_and_its_fallbacks_have_none() -> None:
    best = Model(model="x/best", fallbacks=["cheap", "y/z"])
    definitions = Definitions(models={"best": best, "cheap": Model(model="x/cheap", fallbacks=["best"])})

    assert definitions.model_of(None).model == "local/smollm2"
    assert [model.model for model in definitions.with_fallbacks(definitions.model_of("best"))] == ["x/best", "x/cheap", "y/z"]


def test_a_tenant_without_a_quota_of_its_own_has_that_of_all_others() -> None:
    limits = Limits(quotas={"a": Quota(open_runs=1), "*": Quota(open_runs=2)})

    assert [limits.quota_of(tenant).open_runs for tenant in ("a", "b")] == [1, 2]
    assert Limits().quota_of("a") == Quota()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("web.get", ("web", "get")), ("web.pages.get", ("web.pages", "get")), ("web", None), ("web.", None), ("other.get", None),
        ("f.x", None), ("web.own", None),
    ],
)  # fmt: skip
def test_a_tool_of_a_server_is_named_behind_the_longest_name_of_a_server(name: str, found: tuple[str, str] | None) -> None:
    server = Tool(mcp=McpServer(command=["s"]))
    tools = {"web": server, "web.pages": server, "f": Tool(function="m:f"), "web.own": Tool(function="m:own")}

    assert mcp_tool(name, tools) == found
