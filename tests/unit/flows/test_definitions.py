"""Definitions: options that exclude or need each other, and what a name stands for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cantata.flows.definitions import Agent, Definitions, Limits, McpServer, Model, Quota, Router, Team, Tool, mcp_tool


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
    assert [model.model for model in definitions.with_fallbacks(definitions.model_of("best"))] == [
        "x/best",
        "x/cheap",
        "y/z",
    ]


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
def test_a_tool_of_a_server_is_named_behind_the_longest_name_of_a_server(
    name: str, found: tuple[str, str] | None
) -> None:
    server = Tool(mcp=McpServer(command=["s"]))
    tools = {"web": server, "web.pages": server, "f": Tool(function="m:f"), "web.own": Tool(function="m:own")}

    assert mcp_tool(name, tools) == found
