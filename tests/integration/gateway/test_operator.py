"""What an operator sees and does at a gateway, beside two tenants who notice nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.integration.gateway.conftest import Deployment, Gateway, Json
from tests.waiting import until

RIGHTS: dict[str, Json] = {
    "acme": {"tenant": "acme", "scopes": ["chat", "submit", "signal", "read", "admin"]},
    "globex": {"tenant": "globex", "scopes": ["chat", "submit", "signal", "read"]},
    "sre": {"tenant": "", "scopes": ["operator"]},
    "root": {"tenant": "", "scopes": ["admin"]},
    "plain": {"tenant": "", "scopes": ["chat", "submit", "signal", "read"]},
}
ADDING = {"entry_node": "s", "nodes": [{"node_id": "s", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}]}
BROKEN = {"entry_node": "s", "nodes": [{"node_id": "s", "kind": "tool", "name": "add", "input": {"a": 1, "b": "x"}}]}
WAITING = {"entry_node": "ok", "nodes": [{"node_id": "ok", "kind": "wait", "question": "Ship it?"}]}

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def gateway(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of two tenants and operators."""
    tokens = {f"token-of-{name}-0123456789": {"name": name, **rights} for name, rights in RIGHTS.items()}
    with deployment.gateway("--rate", "10000", CANTATA_GATEWAY_TOKENS=json.dumps(tokens)) as started:
        yield started


@pytest.fixture(scope="module")
def ask(gateway: Gateway) -> Ask:
    """Sends a request with the token of a name."""

    def send(name: str, method: str, path: str, **more: Any) -> httpx.Response:
        with gateway.http(f"token-of-{name}-0123456789") as http:
            return http.request(method, path, **more)

    return send


@pytest.fixture(scope="module")
def runs(ask: Ask) -> dict[str, str]:
    """A failed run of each tenant."""
    return {
        name: ask(name, "POST", "/chains?wait=40", json=BROKEN).json()["run_id"] for name in ("acme", "globex", "plain")
    }


def ids(answer: httpx.Response) -> set[str]:
    return {run["run_id"] for run in answer.json()["runs"]}


@pytest.mark.parametrize("name", ["sre", "root"])
def test_an_operator_lists_counts_and_reads_the_runs_of_all_tenants_and_of_one(
    ask: Ask, runs: dict[str, str], name: str
) -> None:
    assert ids(ask(name, "GET", "/runs?most=1000")) >= {*runs.values()}
    assert ids(ask(name, "GET", "/runs?most=1000&status=failed&tenant=acme")) == {runs["acme"]}
    of_none = ids(ask(name, "GET", "/runs?most=1000&tenant="))
    assert runs["plain"] in of_none
    assert not of_none & {runs["acme"], runs["globex"]}

    def failed(query: str) -> int:
        return int(ask(name, "GET", f"/runs/counts?{query}").json()["counts"]["failed"])

    assert failed("tenant=acme") == 1
    assert failed("") >= 3
    assert ask(name, "GET", "/costs").status_code == ask(name, "GET", "/costs?tenant=acme").status_code == 200
    for run_id in runs.values():
        for path in ("", "/graph", "/steps/s", "/logs", "/refusals"):
            assert ask(name, "GET", f"/runs/{run_id}{path}").status_code == 200
    assert ask(name, "GET", f"/runs/{runs['acme']}?tenant=globex").status_code == 404, "it is of another tenant"
    assert {"", "acme", "globex"} <= {*ask(name, "GET", "/tenants").json()["tenants"]}
    assert ask(name, "GET", "/workers?tenant=acme").status_code == ask(name, "GET", "/metrics").status_code == 200


def test_an_operator_is_told_the_checks_of_the_fleet_and_nobody_else_is(ask: Ask) -> None:
    found = ask("sre", "GET", "/status").json()

    assert {"Redis", "memory", "workers", "sweep", "runs"} <= {check["name"] for check in found["checks"]}
    assert found["status"] in ("ok", "degraded"), found
    assert ask("acme", "GET", "/status").status_code == ask("plain", "GET", "/status").status_code == 403


def test_others_see_their_own_and_may_name_no_other(ask: Ask, runs: dict[str, str]) -> None:
    for name, own in (("acme", "acme"), ("globex", "globex"), ("plain", "")):
        assert ids(ask(name, "GET", f"/runs?most=1000&tenant={own}")) & {*runs.values()} == {runs[name]}
        assert ask(name, "GET", "/tenants").json() == {"tenants": [own], "sees_all": False, "is_complete": True}
        for other in {"acme", "globex", ""} - {own}:
            for method, path in (
                ("GET", "/runs"),
                ("GET", "/schedules"),
                ("GET", "/memory"),
                ("POST", f"/runs/{runs[name]}/retry"),
            ):
                refused = ask(name, method, f"{path}?tenant={other}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope"), (path, other)
        assert ask(name, "GET", "/workers").status_code == 403
    assert ask("plain", "GET", f"/runs/{runs['acme']}").status_code == 404


def test_a_chat_of_an_operator_is_in_the_tenant_that_it_names_and_others_name_none(gateway: Gateway, ask: Ask) -> None:
    async def main() -> Json:
        with pytest.raises(InvalidStatus) as refused:
            async with gateway.chat("desk?tenant=acme", "token-of-globex-0123456789"):
                pass
        assert refused.value.response.status_code == 403
        async with gateway.chat("desk?tenant=acme", "token-of-sre-0123456789") as chat:
            return await chat.ask("@echo: hello")

    run_id = asyncio.run(main())["run_id"]

    assert ask("acme", "GET", f"/runs/{run_id}").status_code == 200
    assert ask("plain", "GET", f"/runs/{run_id}").status_code == 404
    assert ask("acme", "GET", "/sessions/desk").json()["entries"]


def test_an_operator_acts_on_a_tenant_s_run_and_what_it_starts_is_the_tenant_s(ask: Ask, runs: dict[str, str]) -> None:
    open_run = ask("acme", "POST", "/chains", json=WAITING).json()["run_id"]

    assert ask("sre", "POST", f"/runs/{open_run}/cancel").json()["status"] == "cancelled"
    retried = ask("sre", "POST", f"/runs/{runs['acme']}/retry").json()["run_id"]
    again = ask("sre", "POST", f"/runs/{runs['acme']}/retry?tenant=globex")

    assert again.status_code == 404
    assert ask("acme", "GET", f"/runs/{retried}?wait=40").json()["status"] == "failed"
    labels = ask("acme", "GET", f"/runs/{retried}/graph").json()["run"]["labels"]
    assert labels.items() >= {"tenant": "acme", "requested_by": "sre"}.items()
    assert ask("globex", "GET", f"/runs/{retried}").status_code == 404
    started = ask("sre", "POST", "/chains?tenant=globex&wait=40", json=ADDING).json()["run_id"]
    assert ask("globex", "GET", f"/runs/{started}").json()["status"] == "succeeded"


def test_an_operator_answers_the_inbox_of_all_but_approves_nothing_of_its_own(ask: Ask) -> None:
    of_acme = ask("acme", "POST", "/chains", json=WAITING).json()["run_id"]
    own = ask("sre", "POST", "/chains?tenant=acme", json=WAITING).json()["run_id"]

    def waiting(query: str = "") -> dict[str, str]:
        return {item["run_id"]: item["refused"] for item in ask("sre", "GET", f"/inbox{query}").json()["items"]}

    until(lambda: {of_acme, own} <= waiting().keys(), "both to wait")
    assert waiting()[of_acme] == ""
    assert "another token must approve it" in waiting()[own]
    assert {of_acme, own} <= waiting("?tenant=acme").keys()
    assert not {of_acme, own} & waiting("?tenant=globex").keys()
    answers = [{"id": f"{run_id}/ok", "value": True} for run_id in (of_acme, own)]
    outcomes = ask("sre", "POST", "/inbox/answers", json={"answers": answers}).json()["answers"]
    assert [each["outcome"] for each in outcomes] == ["taken", "own_run"]
    assert ask("acme", "POST", f"/runs/{own}/signals/ok", json={"value": True}).json()["signal"] == "taken"


def test_an_operator_finds_schedules_batches_and_sessions_by_their_tenant(ask: Ask) -> None:
    schedule = {"every": "1h", "chain": ADDING}
    for name in ("acme", "globex"):
        assert ask(name, "PUT", "/schedules/nightly", json=schedule).status_code == 200
        assert ask(name, "POST", "/batches", json={"name": "rows", "chain": "adding"}).status_code == 201
        ask(name, "POST", "/turns?wait=40", json={"text": f"hello from {name}", "agent": "echo", "session": "s"})

    listed = {(each["tenant"], each["name"]) for each in ask("sre", "GET", "/schedules").json()["schedules"]}
    begun = [(each["tenant"], each["name"]) for each in ask("sre", "GET", "/batches").json()["batches"]]

    assert {("acme", "nightly"), ("globex", "nightly")} <= listed
    assert begun[:2] == [("globex", "rows"), ("acme", "rows")], "the newest first"
    assert ask("sre", "GET", "/schedules/nightly").status_code == 404, "without a tenant there is none"
    assert ask("sre", "POST", "/schedules/nightly/pause?tenant=acme").json()["state"] == "paused"
    assert ask("globex", "GET", "/schedules/nightly").json()["state"] == "active"
    assert ask("sre", "POST", "/batches/rows/cancel?tenant=globex").json()["state"] == "cancelled"
    assert ask("acme", "GET", "/batches/rows").json()["state"] == "running"
    assert "hello from acme" in ask("sre", "GET", "/sessions/s?tenant=acme").text
    assert ask("sre", "GET", "/sessions/s").status_code == 404


def test_an_operator_without_admin_changes_no_memory(ask: Ask) -> None:
    ask("acme", "PUT", "/memory/notes/one", json={"value": 1})

    for method, path in (("PUT", "/memory/notes/one"), ("DELETE", "/memory/notes/one"), ("DELETE", "/sessions/s")):
        refused = ask("sre", method, f"{path}?tenant=acme", **({"json": {"value": 2}} if method == "PUT" else {}))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert ask("sre", "GET", "/memory/notes/one?tenant=acme").json()["value"] == 1
    assert ask("root", "PUT", "/memory/notes/one?tenant=acme", json={"value": 3}).status_code == 200
    assert ask("acme", "GET", "/memory/notes/one").json()["value"] == 3


def test_requests_of_an_operator_count_for_nobody_else(deployment: Deployment) -> None:
    tokens = {f"token-of-{name}-0123456789": {"name": name, **RIGHTS[name]} for name in ("acme", "sre")}
    with (
        deployment.gateway("--rate", "0.3", CANTATA_GATEWAY_TOKENS=json.dumps(tokens)) as gateway,
        gateway.http("token-of-sre-0123456789") as sre,
        gateway.http("token-of-acme-0123456789") as acme,
    ):
        asked = [sre.get("/runs?tenant=acme").status_code for _ in range(4)]

        assert 429 in asked
        assert acme.get("/runs").status_code == 200
