"""What a token may do: its scopes, what it may name, and approvals that need somebody else."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cantata.flows.definitions import Agent, Chain, Definitions, Team
from cantata.flows.graph import Spec
from cantata.flows.waits import InboxItem
from cantata.flows.wire import ChainNode, ChainRequest, TurnRequest
from cantata.surfaces.gateway.grants import UNLIMITED, Grant, Scope
from cantata.surfaces.http.rejections import RequestRejected

DEFINITIONS = Definitions.model_validate(
    {
        "agents": {"echo": Agent(), "clerk": Agent()},
        "teams": {"service": Team(mode="pipeline", agents=["echo"])},
        "chains": {"adding": Chain(nodes=[ChainNode(node_id="a", kind="wait")], entry_node="a")},
        "defaults": {"team": "service"},
    }
)


def token(**rights: Any) -> Grant:
    return Grant(tenant="acme", name="app", **rights)


def chain(kind: Any, name: str) -> ChainRequest:
    return ChainRequest(
        nodes=[ChainNode(node_id="a", kind="wait"), ChainNode(node_id="b", kind=kind, name=name)], entry_node="a"
    )


@pytest.mark.parametrize("scope", ["chat", "submit", "signal", "read", "operator", "admin"])
def test_a_refusal_names_the_scope_and_the_token_and_says_what_to_do(scope: Scope) -> None:
    grant = token(scopes=[])

    with pytest.raises(
        RequestRejected, match=f"token 'app' lacks the scope '{scope}'; add it to the token's 'scopes'"
    ) as refused:
        grant.require(scope)

    assert (refused.value.status, refused.value.code) == (403, "missing_scope")
    token(scopes=[scope]).require(scope)
    if scope != "operator":  # an admin of a tenant is none
        token(scopes=["admin"]).require(scope)


TURNS = [
    ({}, {"teams": ["service"]}),
    ({"team": "service"}, {"teams": ["service"]}),
    ({"agent": "echo"}, {"agents": ["echo"]}),
    ({"workflow": "adding"}, {"chains": ["adding"]}),
]


@pytest.mark.parametrize(("asked", "enough"), TURNS)
def test_a_limited_token_has_turns_answered_by_what_it_names(
    asked: dict[str, str], enough: dict[str, list[str]]
) -> None:
    turn = TurnRequest(text="hello", **asked)  # type: ignore[arg-type]  # each is a text

    for grant in (token(), token(**enough), UNLIMITED):
        grant.check_turn(turn, DEFINITIONS)
    for section, names in (("agents", ["clerk"]), ("chains", []), ("teams", ["other"])):
        with pytest.raises(
            RequestRejected,
            match=r"token 'app' may not use the (team 'service'|agent 'echo'|workflow 'adding'); add it to",
        ):
            token(**{section: names}).check_turn(turn, DEFINITIONS)


def test_a_limited_token_s_chains_name_what_it_may_and_no_tools() -> None:
    grant = token(agents=["echo"], chains=["adding"])

    for kind, name in (("agent", "echo"), ("chain", "adding"), ("wait", "")):
        grant.check_chain(chain(kind, name))
    for kind, name in (("agent", "clerk"), ("chain", "other"), ("tool", "echo"), ("skill", "adding"), ("proc", "ls")):
        with pytest.raises(RequestRejected, match=f"may not use the {kind} '{name}'") as refused:
            grant.check_chain(chain(kind, name))
        assert refused.value.code == "not_granted"
    token().check_chain(chain("proc", "ls"))


def test_what_cannot_be_read_may_be_anything_so_only_a_token_that_may_use_all_changes_it() -> None:
    able = {"scopes": ["chat", "submit"]}

    token(**able).check_schedule(None, DEFINITIONS)
    UNLIMITED.check_schedule(None, DEFINITIONS)
    for rights, message in (
        ({**able, "agents": ["echo"]}, "is limited to named teams, agents and chains; use a token that is not"),
        ({"scopes": ["submit"]}, "lacks the scope 'chat'"),
        ({"scopes": ["chat"]}, "lacks the scope 'submit'"),
    ):
        with pytest.raises(RequestRejected, match=message) as refused:
            token(**rights).check_schedule(None, DEFINITIONS)
        assert refused.value.status == 403


def test_nobody_may_answer_what_cannot_be_read() -> None:
    item = InboxItem(
        id="r/a", run_id="r", step="a", kind="", question="", since=0.0, run_kind="", title="", unreadable="why"
    )

    assert (
        UNLIMITED.refusal_of(item)
        == token().refusal_of(item)
        == "it is not known who may answer this, since it cannot be read"
    )
    assert UNLIMITED.refusal_of(item.model_copy(update={"unreadable": ""})) == ""


def test_an_approval_needs_another_token_than_the_one_that_asked_for_the_run() -> None:
    own, others = {"requested_by": "app"}, {"requested_by": "else"}

    assert "another token must approve it" in token().own_approval(own, Spec(kind="wait", work=""))
    assert "another token must approve it" in token().own_approval(own, None), "a name that is no step may mean one"
    assert "another token must approve it" in token().own_approval(own, Spec(kind="tool.call", work="tools:pay")), (
        "a lost call that a person settles"
    )
    assert not token().own_approval(own, Spec(kind="wait", work="tools:clarify")), "a question to whoever asked"
    assert not token().own_approval(others, Spec(kind="wait", work=""))
    assert not token().own_approval({}, Spec(kind="wait", work=""))
    assert not token(approve_own=True).own_approval(own, Spec(kind="wait", work=""))
    assert not UNLIMITED.own_approval({}, Spec(kind="wait", work=""))


def test_what_is_of_all_tenants_is_for_the_operator_s_token() -> None:
    Grant(tenant="", scopes=["admin"]).require_fleet()
    for grant in (token(scopes=["admin"]), Grant(tenant="", scopes=["read"])):
        with pytest.raises(RequestRejected):
            grant.require_fleet()


@pytest.mark.parametrize(
    ("scopes", "sees", "may"),
    [
        (["operator"], None, {"chat", "submit", "signal", "read", "operator"}),
        (["admin"], None, {"chat", "submit", "signal", "read", "admin"}),
        (["chat", "submit", "signal", "read"], "", {"chat", "submit", "signal", "read"}),
    ],
)
def test_an_operator_sees_all_tenants_or_the_one_that_it_chooses(
    scopes: list[Scope], sees: str | None, may: set[Scope]
) -> None:
    grant = Grant(tenant="", name="sre", scopes=scopes)

    assert grant.reads == sees
    assert {scope for scope in get_args(Scope) if not grant.lacks(scope)} == may
    if sees is None:
        grant.require_fleet()
        for tenant in ("acme", ""):
            chosen = grant.for_tenant(tenant)
            assert (chosen.reads, chosen.tenant, chosen.is_operator) == (tenant, tenant, True)
            assert chosen.labels() == {"requested_by": "sre", **({"tenant": tenant} if tenant else {})}
            chosen.require_fleet()
    assert grant.for_tenant(None) is grant


@pytest.mark.parametrize("scopes", [["admin"], ["chat", "submit", "signal", "read"]])
def test_a_token_of_a_tenant_may_name_its_own_alone(scopes: list[Scope]) -> None:
    grant = token(scopes=scopes)

    assert grant.reads == grant.for_tenant("acme").reads == "acme"
    for other in ("", "globex"):
        with pytest.raises(RequestRejected, match="token 'app' is of tenant 'acme' and may not name another"):
            grant.for_tenant(other)
    with pytest.raises(RequestRejected, match="is no operator's"):
        grant.require_fleet()


def test_an_operator_answers_only_what_is_for_it_and_approves_no_run_of_its_own() -> None:
    operator = Grant(tenant="", name="sre", scopes=["operator"])
    step = Spec(kind="wait", work="")

    assert "another token must approve it" in operator.own_approval({"requested_by": "sre"}, step)
    assert operator.for_tenant("acme").own_approval({"requested_by": "sre", "tenant": "acme"}, step)
    assert operator.own_approval({"requested_by": "app"}, step) == ""
    assert operator.identities == ["sre", "operator"]
    assert Grant(tenant="", name="root", scopes=["admin"]).for_tenant("acme").identities is None
