"""The audit log and the access log of a real gateway: who did what, by which token and from where, and what was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from cantata.client.client import Client
from tests.integration.gateway.conftest import Deployment, Gateway, Json
from tests.waiting import until

TOKENS: dict[str, Json] = {
    "boss": {"tenant": "acme", "scopes": ["admin"]},
    "clerk": {"tenant": "acme", "scopes": ["submit", "read", "signal"]},
    "approver": {"tenant": "acme", "scopes": ["signal", "read"]},
    "reader": {"tenant": "acme", "scopes": ["read"]},
    "stranger": {"tenant": "other", "scopes": ["admin"]},
    "operator": {"tenant": "", "scopes": ["admin"]},
}
WAITING = {"entry_node": "ok", "nodes": [{"node_id": "ok", "kind": "wait"}]}
HOURLY = {"every": "1h", "chain": WAITING}
SEEN_FROM = "10.1.2.3"

pytestmark = pytest.mark.timeout(180)


def token(name: str) -> str:
    return f"token-of-{name}-0123456789"


@pytest.fixture(scope="module")
def own(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The same stack, with a log of our own."""
    return Deployment(tmp_path_factory.mktemp("audited"), deployment.stack, deployment.models)


@pytest.fixture(scope="module")
def audited(own: Deployment) -> Iterator[Gateway]:
    """A gateway of two tenants and an operator, with an access log."""
    tokens = {token(name): {"name": name, **rights} for name, rights in TOKENS.items()}
    variables = {"CANTATA_GATEWAY_TOKENS": json.dumps(tokens), "CANTATA_ACCESS_LOG": "1"}
    with own.gateway("--rate", "10000", **variables) as gateway:
        yield gateway


class Caller:
    """Requests by tokens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def __call__(self, name: str, method: str, path: str, body: object = None, status: int | None = None) -> Any:
        """The JSON of an answer, which has this status, or a good one."""
        with self._gateway.http(token(name)) as http:
            answer = http.request(method, path, json=body, headers={"X-Forwarded-For": SEEN_FROM})
        assert answer.status_code == status if status else answer.is_success, answer.text
        return answer.json()

    def entries(self, name: str, **wanted: str | int) -> list[Json]:
        """The audit log, as a token sees it."""
        query = "&".join(f"{key}={value}" for key, value in wanted.items())
        found: list[Json] = self(name, "GET", f"/audit?{query}")["entries"]
        return found

    def waiting_run(self, name: str = "clerk") -> str:
        run_id: str = self(name, "POST", "/chains", WAITING)["run_id"]
        until(lambda: any(item["run_id"] == run_id for item in self("boss", "GET", "/inbox")["items"]), "the wait")
        return run_id


@pytest.fixture(scope="module")
def call(audited: Gateway) -> Caller:
    return Caller(audited)


def events(own: Deployment, run_id: str, kind: str) -> list[Json]:
    with Client(own.stack.url) as client:
        return [event.model_dump() for event in client.run(run_id).log(timeout_s=0) if event.type == kind]


SIGNED = {"via": "http", "verified": True}


def test_each_act_on_a_run_is_an_entry_and_an_event_with_the_token_s_name(call: Caller, own: Deployment) -> None:
    cancelled, answered, signalled = call.waiting_run(), call.waiting_run(), call.waiting_run()
    call("clerk", "POST", f"/runs/{cancelled}/cancel")
    retried = call("clerk", "POST", f"/runs/{cancelled}/retry")["run_id"]
    forked = call("boss", "POST", f"/runs/{cancelled}/fork", {"from_step": "ok"})["run_id"]
    call("approver", "POST", f"/runs/{signalled}/signals/ok", {"value": True})
    call("approver", "POST", "/inbox/answers", {"answers": [{"id": f"{answered}/ok", "value": True}]})

    found = call.entries("boss", most=5)
    assert [(each["action"], each["by"], each["run_id"], each["outcome"]) for each in found] == [
        ("inbox.answer", "approver", answered, "done"),
        ("run.signal", "approver", signalled, "done"),
        ("run.fork", "boss", cancelled, "done"),
        ("run.retry", "clerk", cancelled, "done"),
        ("run.cancel", "clerk", cancelled, "done"),
    ]
    assert {(each["address"], each["via"], each["verified"], each["tenant"]) for each in found} == {
        (SEEN_FROM, "http", True, "acme")
    }
    assert (found[2]["detail"], found[3]["detail"]) == (f"as {forked}", f"as {retried}")
    assert events(own, cancelled, "closed")[0].items() >= {"by": "clerk", "status": "cancelled", **SIGNED}.items()
    assert events(own, retried, "accepted")[0].items() >= {"by": "clerk", "forked_from": cancelled, **SIGNED}.items()
    assert events(own, forked, "accepted")[0].items() >= {"by": "boss", **SIGNED}.items()
    assert events(own, answered, "signal")[0].items() >= {"by": "approver", **SIGNED}.items()
    assert events(own, answered, "closed")[0]["by"] == "", "nobody ended it"
    for run_id in (retried, forked):
        call("boss", "POST", f"/runs/{run_id}/cancel")


def test_what_changes_nothing_has_no_entry(call: Caller) -> None:
    run_id = call.waiting_run()
    call("clerk", "POST", f"/runs/{run_id}/cancel")
    call("boss", "POST", f"/runs/{run_id}/cancel")
    call("approver", "POST", f"/runs/{run_id}/signals/ok", {"value": True}, 409)
    call("boss", "POST", "/runs/unknown/cancel", status=404)
    call("boss", "DELETE", "/memory/none/none")

    assert [(each["action"], each["by"]) for each in call.entries("boss", run=run_id)] == [("run.cancel", "clerk")]
    assert call.entries("boss", run="unknown") == []
    assert call.entries("boss", action="memory.delete") == []


def test_what_a_token_may_not_do_is_an_entry_with_the_reason(call: Caller) -> None:
    run_id = call.waiting_run()
    call("reader", "POST", f"/runs/{run_id}/cancel", status=403)
    call("clerk", "POST", f"/runs/{run_id}/signals/ok", {"value": True}, 403)
    (own_run,) = call("clerk", "POST", "/inbox/answers", {"answers": [{"id": f"{run_id}/ok", "value": 1}]})["answers"]
    call("reader", "PUT", "/schedules/nightly%2F1", HOURLY, 403)

    schedule, answer, signal, cancel = call.entries("boss", most=4)
    assert own_run["outcome"] == "own_run"
    assert (cancel["action"], cancel["by"], cancel["run_id"], cancel["outcome"]) == (
        "run.cancel", "reader", run_id, "refused",
    )  # fmt: skip
    assert "token 'reader' lacks the scope 'submit'" in cancel["detail"]
    assert (signal["action"], signal["by"], signal["target"], signal["outcome"]) == (
        "run.signal", "clerk", "ok", "refused",
    )  # fmt: skip
    assert "another token must approve it" in signal["detail"]
    assert (answer["action"], answer["by"], answer["outcome"]) == ("inbox.answer", "clerk", "refused")
    assert (schedule["target"], schedule["outcome"]) == ("nightly/1", "refused")
    call("boss", "POST", f"/runs/{run_id}/cancel")


def test_schedules_batches_sessions_and_memory_are_in_it(call: Caller) -> None:
    call("clerk", "PUT", "/schedules/nightly", HOURLY)
    call("clerk", "PUT", "/schedules/nightly", {**HOURLY, "note": "more often"})
    call("clerk", "POST", "/schedules/nightly/pause?note=holidays")
    call("clerk", "POST", "/schedules/nightly/resume")
    started = call("clerk", "POST", "/schedules/nightly/trigger")["run_id"]
    call("clerk", "POST", "/schedules/nightly/backfill", {"start": "2030-05-01T00:00", "end": "2030-05-01T01:00"})
    call("clerk", "DELETE", "/schedules/nightly")
    call("clerk", "POST", "/batches", {"name": "b", "chain": "adding"})
    for act in ("pause", "resume", "cancel"):
        call("clerk", "POST", f"/batches/b/{act}")
    call("boss", "POST", "/turns?wait=40", {"text": "hello", "agent": "echo", "session": "talk"})
    call("boss", "DELETE", "/sessions/talk")
    call("boss", "PUT", "/memory/notes/a%2Fb", {"value": 1})
    call("boss", "DELETE", "/memory/notes/a%2Fb")

    found = call.entries("boss", most=13)
    assert [(each["action"], each["target"], each["by"]) for each in reversed(found)] == [
        *((f"schedule.{verb}", "nightly", "clerk")
          for verb in ("create", "change", "pause", "resume", "trigger", "backfill", "delete")),
        *((f"batch.{verb}", "b", "clerk") for verb in ("pause", "resume", "cancel")),
        ("session.clear", "talk", "boss"), ("memory.store", "notes/a/b", "boss"), ("memory.delete", "notes/a/b", "boss"),
    ]  # fmt: skip
    details = {each["action"]: each["detail"] for each in found}
    assert details["schedule.pause"] == "holidays"
    assert details["schedule.trigger"] == f"new: {started}"
    assert details["schedule.backfill"] == "2 times"
    for run in call("boss", "GET", "/runs?status=waiting&status=running&status=accepted")["runs"]:
        call("boss", "POST", f"/runs/{run['run_id']}/cancel")


def test_a_tenant_sees_its_own_entries_and_the_operator_all(call: Caller) -> None:
    run_id = call.waiting_run()
    call("boss", "POST", f"/runs/{run_id}/cancel")
    call("stranger", "PUT", "/memory/notes/a", {"value": 1})

    assert {each["tenant"] for each in call.entries("stranger")} == {"other"}
    assert call.entries("stranger", run=run_id) == []
    assert {each["tenant"] for each in call.entries("boss", most=1000)} == {"acme"}
    assert {each["tenant"] for each in call.entries("operator", most=1000)} >= {"acme", "other"}
    assert {each["tenant"] for each in call.entries("operator", tenant="other")} == {"other"}
    assert call("stranger", "GET", "/audit?tenant=acme", status=403)["error"]["code"] == "missing_scope"
    assert call("clerk", "GET", "/audit", status=403)["error"]["code"] == "missing_scope"


def test_pages_follow_one_another_and_wrong_ones_are_refused(call: Caller) -> None:
    for number in range(5):
        call("stranger", "PUT", f"/memory/pages/{number}", {"value": 1})

    first = call("stranger", "GET", "/audit?action=memory&most=2")
    second = call("stranger", "GET", f"/audit?action=memory&most=2&before={first['next']}")

    assert [each["target"] for each in (*first["entries"], *second["entries"])] == [
        f"pages/{number}" for number in (4, 3, 2, 1)
    ]
    assert "use `next`" in call("boss", "GET", "/audit?before=x", status=422)["error"]["message"]
    assert call("boss", "GET", "/audit?since=yesterday", status=422)["error"]["code"] == "bad_request"
    assert call("boss", "GET", "/audit?most=0", status=422)["error"]["code"] == "bad_request"


def test_without_tokens_nobody_is_verified(gateway: Gateway, deployment: Deployment) -> None:
    with gateway.http() as http:
        run_id = http.post("/chains", json=WAITING).json()["run_id"]
        http.post(f"/runs/{run_id}/cancel")
        (entry,) = http.get(f"/audit?run={run_id}").json()["entries"]

    assert (entry["by"], entry["verified"], entry["via"]) == ("anonymous", False, "http")
    assert events(deployment, run_id, "closed")[0].items() >= {"by": "anonymous", "verified": False}.items()


# --- the access log


def lines(own: Deployment, **wanted: object) -> list[Json]:
    """The lines of the access log with these fields, once there are some."""

    def read() -> list[Json]:
        found = [json.loads(line) for line in (own.folder / "gateway.log").read_text().splitlines()]
        assert not [each for each in found if "event" not in each]
        return [each for each in found if wanted.items() <= each.items()]

    found: list[Json] = until(read, f"a line with {wanted}")
    return found


def test_each_request_is_a_line_with_its_token_and_without_secrets(call: Caller, own: Deployment) -> None:
    call("boss", "GET", "/runs/no-such-run?secret=hidden", status=404)

    (line,) = lines(own, path="/runs/no-such-run")
    assert line.items() >= {
        "event": "request", "method": "GET", "status": 404, "token": "boss", "tenant": "acme", "address": SEEN_FROM,
        "run": "no-such-run", "level": "info",
    }.items()  # fmt: skip
    assert line["bytes"] > 0
    assert line["ms"] >= 0
    text = (own.folder / "gateway.log").read_text()
    assert "hidden" not in text
    assert "0123456789" not in text, "no token"


def test_rejected_requests_are_lines_too(call: Caller, audited: Gateway, own: Deployment) -> None:
    with audited.http("wrong-token-of-nobody-0123456789") as http:
        assert http.get("/sessions/rejected").status_code == 401
        for _ in range(25):
            answer = http.get("/sessions/rejected")
    call("reader", "DELETE", "/sessions/denied", status=403)

    assert answer.status_code == 429
    assert {(each["status"], each["token"]) for each in lines(own, path="/sessions/rejected")} >= {(401, None)}
    assert lines(own, path="/sessions/rejected", status=429)[0]["tenant"] is None
    assert lines(own, path="/sessions/denied")[0].items() >= {"status": 403, "token": "reader"}.items()


def test_no_path_forges_a_line(audited: Gateway, own: Deployment) -> None:
    forged = '/runs/%0A{"event":%20"forged"}%1b[31m'
    with audited.http(token("boss")) as http:
        http.get(forged)

    (line,) = (each for each in lines(own, event="request") if "forged" in each["path"])
    assert line["path"].startswith("/runs/%0A")
    assert not [each for each in lines(own) if each["event"] == "forged"]


def test_a_websocket_is_a_line_when_it_opens_and_when_it_closes(audited: Gateway, own: Deployment) -> None:
    async def main() -> None:
        async with audited.chat("logged", token("boss")):
            lines(own, event="websocket_opened", path="/ws/logged")
            assert not [each for each in lines(own) if each["event"] == "websocket_closed"]
        with pytest.raises(InvalidStatus):
            async with audited.chat("refused", token("reader")):
                pass

    asyncio.run(main())

    assert lines(own, event="websocket_closed", path="/ws/logged")[0].items() >= {"token": "boss", "code": 1000}.items()
    assert lines(own, event="request", path="/ws/refused")[0].items() >= {"status": 403, "token": "reader"}.items()


def test_without_the_setting_there_is_no_access_log(own: Deployment, tmp_path_factory: pytest.TempPathFactory) -> None:
    silent = Deployment(tmp_path_factory.mktemp("silent"), own.stack, own.models)
    with silent.gateway() as gateway, gateway.http() as http:
        http.get("/runs").raise_for_status()

    assert "request" not in (silent.folder / "gateway.log").read_text()
