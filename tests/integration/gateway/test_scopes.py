"""What a token may do at a gateway, over HTTP and WebSockets, and approvals that another token must give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from cantata.client.client import Client
from tests.integration.gateway.conftest import PATIENCE_S, SCOPES, Deployment, Gateway, Json
from tests.waiting import until

TENANT = "scoped"
RIGHTS: dict[str, Json] = {
    **{scope: {"scopes": [scope]} for scope in SCOPES},
    "usual": {},
    "nothing": {"scopes": []},
    "requester": {"scopes": ["submit", "signal", "read"]},
    "trusted": {"scopes": ["submit", "signal", "read"], "approve_own": True},
    "thrifty": {"tenant": "thrifty", "scopes": ["submit", "signal", "read"], "approve_own": True},
    "lawyer": {"scopes": ["read", "signal"], "groups": ["legal"]},
    "limited": {"scopes": ["chat", "submit", "read"], "agents": ["echo"], "chains": ["adding"]},
}
SUM = {"node_id": "sum", "kind": "tool", "name": "add", "input": {"a": 1}, "input_map": {"b": "input.b"}}
WAITING = {
    "entry_node": "ok",
    "nodes": [{"node_id": "ok", "kind": "wait", "next_node": "sum"}, SUM],
    "initial_input": {"b": 2},
}
ADDING = {"entry_node": "s", "nodes": [{"node_id": "s", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}]}
HOURLY = {"every": "1h", "chain": ADDING}

NEEDED = {
    "POST /turns": "chat",
    "POST /chains": "submit",
    "POST /chains/{name}": "submit",
    "POST /workflows/{name}": "submit",
    "POST /runs/{run_id}/signals/{step}": "signal",
    "POST /inbox/answers": "signal",
    **{
        f"GET {path}": "read"
        for path in (
            "/runs", "/runs/bulk/preview", "/runs/counts", "/costs", "/runs/{run_id}/compare/{other}",
            "/runs/{run_id}", "/runs/{run_id}/events", "/runs/{run_id}/graph", "/runs/{run_id}/steps/{step_id}",
            "/runs/{run_id}/logs", "/runs/{run_id}/tasks", "/runs/{run_id}/refusals", "/sessions", "/sessions/{session}",
            "/memory", "/memory/{namespace}", "/tenants", "/inbox", "/inbox/{run_id}/{step}", "/schedules", "/schedules/{name}",
            "/memory/{namespace}/{key}", "/batches", "/batches/{name}", "/batches/{name}/events", "/batches/{name}/results",
            "/batches/{name}/download",
        )
    },
    "POST /runs/bulk": "read",  # each run needs its own scope besides
    "DELETE /sessions/{session}": "admin",
    "GET /audit": "admin",
    "PUT /memory/{namespace}/{key}": "admin",
    "DELETE /memory/{namespace}/{key}": "admin",
    **{f"POST /runs/{{run_id}}/{act}": "submit" for act in ("cancel", "retry", "fork")},  # of this run, which is a chain
    "POST /batches": "submit",  # of a batch for a chain
    **{f"POST /batches/{{name}}/{act}": "submit" for act in ("rows", "delivered", "retry", "pause", "resume", "cancel")},
    **{f"POST /schedules/{{name}}/{act}": "submit" for act in ("pause", "resume", "trigger", "backfill")},
    "PUT /schedules/{name}": "submit",  # of a chain
    "DELETE /schedules/{name}": "submit",
    "GET /status": "nobody",
    "GET /load": "nobody",
    "GET /workers": "nobody",
    "GET /queues": "nobody",
    **{f"POST /workers/{{name}}/{act}": "nobody" for act in ("drain", "undrain")},
    **{f"POST /queues/{{name}}/{act}": "nobody" for act in ("pause", "resume")},
    "GET /metrics": "nobody",  # of this tenant
}  # fmt: skip
OPEN = {"GET /health", "GET /ready"}


def token(name: str) -> str:
    return f"token-of-{name}-0123456789"


@pytest.fixture(scope="module")
def scoped(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of tokens with one scope each, and others."""
    tokens = {token(name): {"tenant": TENANT, "name": name, **rights} for name, rights in RIGHTS.items()}
    with deployment.gateway("--rate", "10000", CANTATA_GATEWAY_TOKENS=json.dumps(tokens)) as gateway:
        yield gateway


def ask(gateway: Gateway, name: str, method: str, path: str, **more: Any) -> httpx.Response:
    with gateway.http(token(name)) as http:
        return http.request(method, path, **more)


@pytest.fixture(scope="module")
def chain(scoped: Gateway) -> str:
    """A chain of the tenant that is over."""
    found: str = ask(scoped, "submit", "POST", "/chains?wait=40", json=ADDING).json()["run_id"]
    return found


@pytest.mark.slow("each path is asked with each scope")
def test_every_path_needs_one_scope_and_no_other_is_enough(scoped: Gateway, chain: str) -> None:
    with scoped.http() as http:
        document = http.get("/openapi.json").json()
    operations = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}

    assert operations == NEEDED.keys() | OPEN
    batch = {"name": "scoped", "chain": "adding"}
    assert ask(scoped, "submit", "POST", "/batches", json=batch).status_code == 201
    assert ask(scoped, "submit", "POST", "/batches/scoped/rows?last=true").json()["batch"]["state"] == "done", (
        "so nothing is followed"
    )
    for operation, needed in NEEDED.items():
        method, path = operation.split(" ")
        address = path.format(
            run_id=chain,
            step="none",
            step_id="s",
            session="none",
            namespace="none",
            key="none",
            name="scoped",
            other=chain,
        )
        for scope in (*SCOPES, "nothing"):
            bodies = {
                "/fork": {"from_step": "s"}, "/chains/{name}": {}, "/workflows/{name}": {}, "/drain": {},
                "/runs/bulk": {"action": "cancel", "until": 1893456000.0}, "/batches": batch, "/delivered": {"rows": []},
                "/backfill": {"start": "2030-01-01", "end": "2030-01-02"}, "/schedules/{name}": {**HOURLY},
            }  # fmt: skip
            given = next((each for end, each in bodies.items() if path.endswith(end) and method != "GET"), None)
            answer = ask(scoped, scope, method, address, **({} if given is None else {"json": given}))
            is_granted = scope in (needed, "admin") and needed != "nobody"
            assert (answer.status_code == 403) != is_granted, (operation, scope, answer.text)
            if not is_granted:
                assert answer.json()["error"]["code"] == "missing_scope"


def test_a_refusal_says_which_scope_is_missing_and_how_to_grant_it(scoped: Gateway) -> None:
    refused = ask(scoped, "usual", "POST", "/chains", json=ADDING).json()["error"]["message"]

    assert "token 'usual' lacks the scope 'submit'; add it to the token's 'scopes'" in refused
    assert ask(scoped, "usual", "POST", "/turns", json={"text": "hello"}).status_code == 202, "a new token may chat"
    assert ask(scoped, "usual", "GET", "/runs").status_code == 200, "and read"


def test_a_chat_needs_its_scope_and_obeys_the_token_s_limits(scoped: Gateway) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with scoped.chat("s", token("read")):
                pass
        assert refused.value.response.status_code == 403
        assert b"missing_scope" in (refused.value.response.body or b"")
        async with scoped.chat("s", token("limited")) as limited:
            await limited.say("@clerk: sum", id="mine")
            frame = await limited.frame()
            assert (frame["type"], frame["id"], frame["error"]["code"]) == ("error", "mine", "not_granted")
            assert (await limited.ask("@echo: hello"))["output"] == "echo: hello"

    asyncio.run(main())


def test_a_limited_token_names_what_it_may_and_runs_nothing_else(scoped: Gateway) -> None:
    naming = {
        "entry_node": "n",
        "nodes": [{"node_id": "n", "kind": "chain", "name": "adding", "input": {"a": 1, "b": 2}}],
    }
    allowed = [("/turns", {"text": "hello", "agent": "echo"}), ("/turns", {"text": "hello"}), ("/chains", naming)]
    refused = [
        ("/turns", {"text": "hello", "team": "deployment"}),
        ("/turns", {"text": "hello", "workflow": "asking"}),
        ("/chains", ADDING),
    ]

    assert [ask(scoped, "limited", "POST", path, json=body).status_code for path, body in allowed] == [202] * 3
    answers = [ask(scoped, "limited", "POST", path, json=body) for path, body in refused]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(403, "not_granted")] * 3


def test_a_limited_token_does_no_run_anew_that_it_could_not_ask_for(scoped: Gateway, chain: str) -> None:
    answer = ask(scoped, "limited", "POST", f"/runs/{chain}/fork", json={"from_step": "s"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_granted")


def waiting_run(gateway: Gateway, name: str) -> str:
    run_id: str = ask(gateway, name, "POST", "/chains", json=WAITING).json()["run_id"]
    path = f"/runs/{run_id}/steps/ok"
    until(
        lambda: ask(gateway, name, "GET", path).json().get("step", {}).get("state") == "waiting_signal",
        "the step to wait",
    )
    return run_id


def test_a_run_s_requester_may_not_approve_it_but_another_token_may(scoped: Gateway) -> None:
    run_id = waiting_run(scoped, "requester")
    address = f"/runs/{run_id}/signals/ok"

    own = ask(scoped, "requester", "POST", address, json={"value": True})
    shown = ask(scoped, "requester", "GET", f"/runs/{run_id}/refusals?step=ok").json()
    by_another = ask(scoped, "trusted", "GET", f"/runs/{run_id}/refusals?step=ok").json()
    approved = ask(scoped, "signal", "POST", address, json={"value": True})

    assert (own.status_code, own.json()["error"]["code"]) == (403, "own_run")
    assert "'approve_own: true'" in own.json()["error"]["message"]
    assert shown == {"cancel": "", "retry": "", "fork": "", "signal": own.json()["error"]["message"]}
    assert by_another["signal"] == ""
    assert approved.json()["signal"] == "taken"
    ended = ask(scoped, "requester", "GET", f"/runs/{run_id}?wait=40").json()
    assert ended["status"] == "succeeded"


def test_an_inbox_has_the_tenant_s_own_and_each_answer_its_own_outcome(scoped: Gateway) -> None:
    asked = {"kind": "wait", "question": "Sign it?", "who": ["legal"], "answer_schema": {"type": "boolean"}}
    nodes = [
        {"node_id": "start", "kind": "wait", "next_node": ["sign", "seal"]},
        *({"node_id": name, **asked} for name in ("sign", "seal")),
    ]
    run_id = ask(scoped, "submit", "POST", "/chains", json={"entry_node": "start", "nodes": nodes}).json()["run_id"]
    until(
        lambda: ask(scoped, "signal", "POST", f"/runs/{run_id}/signals/start", json={"value": 1}).status_code == 200,
        "the start",
    )

    def inbox(name: str) -> list[Json]:
        found = ask(scoped, name, "GET", "/inbox").json()["items"]
        return sorted(
            (item for item in found if item["run_id"] == run_id and item["step"] != "start"),
            key=lambda item: item["step"],
        )

    until(lambda: len(inbox("read")) == 2, "both questions")
    assert ask(scoped, "read", "GET", f"/runs/{run_id}").json()["status"] == "waiting"
    assert [item["refused"] for item in inbox("lawyer")] == ["", ""]
    assert "lacks the scope 'signal'" in inbox("read")[0]["refused"]
    assert ask(scoped, "lawyer", "GET", f"/inbox/{run_id}/seal").json() == inbox("lawyer")[0]
    assert ask(scoped, "lawyer", "GET", "/inbox?label=tenant=other").json()["items"] == []
    refused = ask(scoped, "signal", "POST", f"/runs/{run_id}/signals/sign", json={"value": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
    shown = ask(scoped, "requester", "GET", f"/runs/{run_id}/refusals?step=sign").json()
    assert shown["signal"] == "this is for legal to answer"

    assert inbox("thrifty") == [], "of another tenant"
    assert ask(scoped, "thrifty", "GET", f"/inbox/{run_id}/sign").status_code == 404
    foreign = ask(
        scoped, "thrifty", "POST", "/inbox/answers", json={"answers": [{"id": f"{run_id}/sign", "value": True}]}
    )
    assert foreign.json()["answers"][0]["outcome"] == "unknown_run"

    answers = [("sign", "yes"), ("sign", True), ("sign", False), ("seal", True), ("none", True)]
    body = {
        "answers": [*({"id": f"{run_id}/{step}", "value": value} for step, value in answers), {"id": "odd", "value": 1}]
    }
    outcomes = ask(scoped, "lawyer", "POST", "/inbox/answers", json=body).json()["answers"]
    assert [each["outcome"] for each in outcomes] == ["bad_answer", "taken", "over", "taken", "closed", "bad_request"]
    assert outcomes[0]["faults"] == [{"message": "'yes' is not of type 'boolean'", "where": "value", "line": None}]
    step = ask(scoped, "read", "GET", f"/runs/{run_id}/steps/sign").json()
    assert (step["output"], step["info"]) == (True, {"answered_by": "lawyer"})


def test_an_approval_is_not_carried_over_to_another_input_by_its_requester(scoped: Gateway) -> None:
    run_id = waiting_run(scoped, "requester")
    ask(scoped, "signal", "POST", f"/runs/{run_id}/signals/ok", json={"value": True})
    ask(scoped, "requester", "GET", f"/runs/{run_id}?wait=40")
    address, changes = f"/runs/{run_id}/fork", {"input.b": 40}

    behind = ask(scoped, "requester", "POST", address, json={"from_step": "sum", "changes": changes})
    same = ask(scoped, "requester", "POST", address, json={"from_step": "sum"})
    before = ask(scoped, "requester", "POST", address, json={"from_step": "ok", "changes": changes})
    early = ask(scoped, "requester", "POST", f"/runs/{before.json()['run_id']}/signals/ok", json={"value": True})
    trusted = ask(scoped, "trusted", "POST", address, json={"from_step": "sum", "changes": changes})

    assert (behind.status_code, behind.json()["error"]["code"]) == (403, "own_run")
    assert [answer.status_code for answer in (same, before, trusted)] == [202, 202, 202]
    assert early.status_code == 403, "a fork is asked for by who forks"


def test_a_token_that_may_approve_its_own_runs_does(scoped: Gateway) -> None:
    run_id = waiting_run(scoped, "trusted")

    assert (
        ask(scoped, "trusted", "POST", f"/runs/{run_id}/signals/ok", json={"value": True}).json()["signal"] == "taken"
    )


def test_a_signal_that_comes_early_is_refused_past_the_tenant_s_quota_and_one_that_is_waited_for_is_not(
    scoped: Gateway,
) -> None:
    waits = [{"node_id": "ok", "kind": "wait", "next_node": "later"}, {"node_id": "later", "kind": "wait"}]
    run_id = ask(scoped, "thrifty", "POST", "/chains", json={"entry_node": "ok", "nodes": waits}).json()["run_id"]

    def signal(step: str) -> httpx.Response:
        return ask(scoped, "thrifty", "POST", f"/runs/{run_id}/signals/{step}", json={"value": True})

    def until_it_waits(step: str) -> None:
        path = f"/runs/{run_id}/steps/{step}"
        until(
            lambda: ask(scoped, "thrifty", "GET", path).json().get("step", {}).get("state") == "waiting_signal",
            f"{step} to wait",
        )

    until_it_waits("ok")
    early = signal("later")
    assert signal("ok").json()["signal"] == "taken"
    until_it_waits("later")

    assert (early.status_code, early.json()["error"]["code"], early.headers["Retry-After"]) == (
        429,
        "quota_exceeded",
        "6",
    )
    assert "limits.quotas early_signals: its open runs keep 0 of 0 signals" in early.json()["error"]["message"]
    assert signal("later").json()["signal"] == "taken"


def test_the_operator_without_a_gateway_is_not_held_to_it(scoped: Gateway, deployment: Deployment) -> None:
    run_id = waiting_run(scoped, "requester")

    with Client(deployment.stack.url) as client:
        assert client.run(run_id).record().labels == {"tenant": TENANT, "requested_by": "requester"}
        assert client.run(run_id).signal("ok", True) == "taken"
        client.run(run_id).wait(PATIENCE_S)


def test_a_schedule_is_changed_by_who_could_start_its_runs_and_runs_as_who_asked(scoped: Gateway) -> None:
    turn = {"every": "1h", "turn": {"text": "hello", "agent": "echo", "session": "greetings"}}
    named = {"every": "1h", "chain": "adding", "input": {"a": 1, "b": 2}, "labels": {"requested_by": "somebody else"}}
    of_team = {"every": "1h", "turn": {"text": "a", "team": "deployment"}}
    for name, schedule, body in (("admin", "turn", turn), ("limited", "named", named), ("submit", "inline", HOURLY)):
        assert ask(scoped, name, "PUT", f"/schedules/{schedule}", json=body).status_code == 200
    for name, body, code in (
        ("submit", turn, "missing_scope"),
        ("limited", HOURLY, "not_granted"),
        ("limited", of_team, "not_granted"),
    ):
        assert ask(scoped, name, "PUT", "/schedules/other", json=body).json()["error"]["code"] == code

    assert (
        ask(scoped, "read", "GET", "/schedules/turn").json()["target"]
        == "turn for agent echo in session greetings: hello"
    )
    refused = [ask(scoped, "limited", "POST", f"/schedules/inline/{act}") for act in ("pause", "trigger")]
    assert [answer.json()["error"]["code"] for answer in refused] == ["not_granted"] * 2
    assert ask(scoped, "limited", "PUT", "/schedules/inline", json=named).status_code == 403, "nor does it replace it"
    run_id = ask(scoped, "submit", "POST", "/schedules/named/trigger").json()["run_id"]
    shown = ask(scoped, "read", "GET", f"/runs/{run_id}/graph").json()["run"]["labels"]
    assert (shown["requested_by"], shown["schedule"]) == ("submit", "named")
    declared = ask(scoped, "read", "GET", "/schedules/named").json()["schedule"]["labels"]
    assert declared == {"tenant": TENANT, "requested_by": "limited"}
    for schedule in ("turn", "named", "inline"):
        assert ask(scoped, "admin", "DELETE", f"/schedules/{schedule}").status_code == 200
