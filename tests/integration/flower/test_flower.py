"""Flower with the run pages in it, over real HTTP: what it shows and does, to whom, and that no run depends on it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flower.urls import handlers
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, create_signed_value

from cantata.engine.fleet import registry
from cantata.surfaces.flower.page_service import PageService
from cantata.surfaces.flower.serve import routes
from cantata.surfaces.http.failed_logins import PER_ADDRESS
from tests.integration.flower.conftest import PATIENCE_S, Deployment
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)  # a stack and a Flower start in 3 s, on a busy machine in 20

ORIGIN = {"Origin": "http://elsewhere.example"}
SAME_SITE = {"Sec-Fetch-Site": "same-site"}
SECRET = "a-secret-of-cookies-0123456789"


@pytest.fixture
def http(deployment: Deployment) -> Iterator[httpx.Client]:
    """A client of the stack's Flower."""
    with deployment.http() as client:
        yield client


def frames(text: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def tasks_of(http: httpx.Client, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/runs/api/runs/{run_id}/tasks").json()["tasks"]
    return found


def rows_of(http: httpx.Client) -> list[dict[str, Any]]:
    """The rows of Flower's own list of tasks."""
    asked: dict[str, str | int] = {
        "draw": 1,
        "start": 0,
        "length": 100,
        "order[0][column]": 0,
        "order[0][dir]": "desc",
        "columns[0][data]": "received",
    }
    found: list[dict[str, Any]] = http.get("/tasks/datatable", params=asked).json()["data"]
    return found


# The pages


def test_flowers_own_pages_are_there_with_a_tab_more(http: httpx.Client) -> None:
    for path in ("/", "/workers", "/tasks", "/broker"):
        page = http.get(path)
        assert page.status_code == 200
        assert re.findall(r'<a class="nav-link" href="/runs/">Runs</a>', page.text) == [
            '<a class="nav-link" href="/runs/">Runs</a>'
        ]
    assert http.get("/healthcheck").text == "OK"
    assert http.get("/api/workers").status_code == 401  # as Flower has it, without passwords


def test_the_document_says_where_its_api_is_and_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    for path in ("/runs", "/runs/", "/runs/home", "/runs/run/a%2Fb"):
        page = http.get(path, follow_redirects=True)
        own = re.findall(r'data-(\w+)="(.*?)"', page.text.partition("<head>")[0])
        assert own == [
            ("api", "/runs/api"),
            ("base", "/runs"),
            ("flower", f"//{http.base_url.netloc.decode()}"),
            ("trace", ""),
        ]
        assert "default-src 'self'" in page.headers["content-security-policy"]


def test_files_are_sent_once(http: httpx.Client) -> None:
    file = http.get("/runs/static/icon.svg")

    assert (file.status_code, file.headers["content-type"]) == (200, "image/svg+xml")
    assert http.get("/runs/static/icon.svg", headers={"If-None-Match": file.headers["etag"]}).status_code == 304
    assert http.get("/runs/static/nothing.js").status_code == 404
    assert http.get("/runs/static/../index.html").status_code == 404


# The API


def test_a_run_is_listed_drawn_and_told_step_by_step(deployment: Deployment, http: httpx.Client) -> None:
    run_id = deployment.added().run_id

    assert run_id in [
        run["run_id"]
        for run in http.get("/runs/api/runs", params={"status": "succeeded", "kind": "chain"}).json()["runs"]
    ]
    assert run_id not in [
        run["run_id"] for run in http.get("/runs/api/runs", params={"status": "failed"}).json()["runs"]
    ]
    counted = http.get("/runs/api/runs/counts", params={"kind": "chain", "since": int(time.time()) - 3600}).json()
    assert counted["counts"]["succeeded"] >= 1
    assert counted["is_complete"]
    assert http.get("/runs/api/runs", params={"q": run_id, "until": int(time.time()) - 3600}).json()["runs"] == []
    assert len(http.get("/runs/api/costs", params={"days": 3}).json()["costs"]) == 3
    graph = http.get(f"/runs/api/runs/{run_id}/graph").json()
    assert (graph["run"]["status"], {step["id"]: step["state"] for step in graph["steps"]}["sum"]) == (
        "succeeded",
        "done",
    )
    assert http.get(f"/runs/api/runs/{run_id}/steps/sum").json()["output"] == 3


def test_each_task_leads_to_its_run_and_each_run_to_its_tasks(deployment: Deployment, http: httpx.Client) -> None:
    run_id = deployment.added().run_id

    until(lambda: "sum" in [step for task in tasks_of(http, run_id) for step in task["steps"]], "the task of the step")
    for task in tasks_of(http, run_id):
        assert task["name"] in ("run.start", "tool.call")
        assert f'<a href="/runs/run/{run_id}">{run_id}</a>' in http.get(f"/task/{task['uuid']}").text
    assert f"{run_id}:add(sum)" in [task["args"] for task in rows_of(http)]


def test_a_failed_step_is_a_failed_task(deployment: Deployment, http: httpx.Client) -> None:
    run_id = deployment.chain({"node_id": "sum", "name": "add", "input": {"a": 1}}).wait(PATIENCE_S).run_id

    failed = until(lambda: [task for task in tasks_of(http, run_id) if task["state"] == "FAILURE"], "a failed task")
    assert [task["steps"] for task in failed] == [["sum"]]
    assert "missing a required argument" in http.get(f"/task/{failed[0]['uuid']}").text


@pytest.mark.parametrize("path", ["graph", "steps/one", "events"])
def test_a_run_that_is_not_known_is_not_found(path: str, http: httpx.Client) -> None:
    answer = http.get(f"/runs/api/runs/1234567890abcdef/{path}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_run")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("runs?most=many", 422),
        ("runs?most=0", 422),
        ("runs?status=odd", 422),
        ("runs?before=odd", 422),
        ("runs?since=1", 422),
        ("runs/x/events?after=-1", 422),
        ("more", 404),
    ],
)
def test_what_is_asked_wrongly_is_told(path: str, status: int, http: httpx.Client) -> None:
    answer = http.get(f"/runs/api/{path}")

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


# Events


def test_events_come_as_they_happen_and_go_on_at_an_offset(deployment: Deployment, http: httpx.Client) -> None:
    with (
        deployment.blocked_run() as (run, release),
        http.stream("GET", f"/runs/api/runs/{run.run_id}/events") as stream,
    ):
        assert stream.headers["content-type"] == "text/event-stream"
        text = ""
        for piece in stream.iter_text():
            text += piece
            if '"step":"wait","attempt":1' in text:
                release()
    told = frames(text)
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    assert told[-1]["type"] == "closed"

    path, seen = f"/runs/api/runs/{run.run_id}/events", told[2]["seq"]
    assert frames(http.get(path, headers={"Last-Event-ID": str(seen)}).text) == told[3:]
    assert frames(http.get(path, params={"after": seen}).text) == told[3:]
    assert http.get(path, headers={"Last-Event-ID": str(told[-1]["seq"])}).status_code == 204


def test_nobody_is_read_for_who_is_gone(deployment: Deployment) -> None:
    with deployment.blocked_run() as (run, _):
        asyncio.run(leave(deployment, run.run_id))


async def leave(deployment: Deployment, run_id: str) -> None:
    """Follow a run and go away, with the handlers in this process."""
    service = PageService(deployment.client)
    app = Application(routes("", service))
    app.options = SimpleNamespace(basic_auth=None, auth=None)  # type: ignore[attr-defined]  # what Flower's handler asks for
    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(app)
    server.add_sockets(sockets)
    try:
        address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/runs/api/runs/{run_id}/events"
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client, client.stream("GET", address) as stream:
            await anext(stream.aiter_text())
            assert service.streams.runs.followed == 1
        await asyncio.to_thread(until, lambda: service.streams.runs.followed == 0, "the end of following")
    finally:
        server.stop()
        await service.close()


# What changes something


def test_a_run_is_cancelled_and_done_anew(deployment: Deployment, http: httpx.Client) -> None:
    with deployment.blocked_run() as (run, release):
        assert http.post(f"/runs/api/runs/{run.run_id}/cancel").json() == {"run_id": run.run_id, "status": "cancelled"}
        release()
    answer = http.post(
        f"/runs/api/runs/{run.run_id}/retry", headers={"Origin": deployment.url, "Sec-Fetch-Site": "same-origin"}
    )

    assert answer.status_code == 202
    assert deployment.client.run(answer.json()["run_id"]).wait(PATIENCE_S).status == "succeeded"
    assert http.post(f"/runs/api/runs/{answer.json()['run_id']}/retry").status_code == 422  # it succeeded
    retried = answer.json()["run_id"]
    fork = http.post(f"/runs/api/runs/{retried}/fork", json={"from_step": "@start", "changes": {}})
    assert (fork.status_code, deployment.client.run(fork.json()["run_id"]).wait(PATIENCE_S).status) == (
        202,
        "succeeded",
    )
    assert http.post(f"/runs/api/runs/{retried}/fork", json={"from_step": 1, "changes": {}}).status_code == 422
    assert (
        http.get(f"/runs/api/runs/{retried}/compare/{fork.json()['run_id']}").json()["steps"][0]["same_output"] is True
    )


def test_a_key_does_a_run_anew_once_and_means_nothing_for_another(deployment: Deployment, http: httpx.Client) -> None:
    cancelled = []
    for _ in range(2):
        with deployment.blocked_run() as (run, release):
            run.cancel()
            release()
        cancelled.append(run.run_id)
    of_the_api = deployment.client.retry(cancelled[0], idempotency_key="again")

    first, again, other = (
        http.post(f"/runs/api/runs/{run_id}/retry", headers={"Idempotency-Key": "again"}).json()["run_id"]
        for run_id in (cancelled[0], cancelled[0], cancelled[1])
    )

    assert first == again
    assert len({first, other, of_the_api.run_id}) == 3
    assert {deployment.client.run(run_id).wait(PATIENCE_S).status for run_id in (first, other, of_the_api.run_id)} == {
        "succeeded"
    }
    too_long = http.post(f"/runs/api/runs/{cancelled[0]}/retry", headers={"Idempotency-Key": "k" * 201})
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (422, "bad_request")


def test_a_schedule_of_any_tenant_is_shown_paused_and_run_now(deployment: Deployment, http: httpx.Client) -> None:
    chain = {
        "nodes": [{"node_id": "sum", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}],
        "entry_node": "sum",
    }
    deployment.client.schedules.of("acme").create("hourly", {"every": "1h", "chain": chain})

    (listed,) = http.get("/runs/api/schedules").json()["schedules"]
    assert (listed["name"], listed["tenant"]) == ("hourly", "acme")
    assert http.get("/runs/api/schedules/hourly").status_code == 404
    of_acme: dict[str, Any] = {"params": {"tenant": "acme"}}
    assert http.get("/runs/api/schedules/hourly", **of_acme).json()["state"] == "active"
    assert http.post("/runs/api/schedules/hourly/pause", **of_acme).json()["state"] == "paused"
    assert http.post("/runs/api/schedules/hourly/resume", **of_acme).json()["state"] == "active"
    run_id = http.post("/runs/api/schedules/hourly/trigger", **of_acme).json()["run_id"]
    assert deployment.client.run(run_id).result(PATIENCE_S).status == "succeeded"
    assert http.get("/runs/schedule/hourly").headers["content-type"].startswith("text/html")
    deployment.client.schedules.of("acme").delete("hourly")


def test_a_waiting_step_is_given_its_value_once(deployment: Deployment, http: httpx.Client) -> None:
    run = deployment.client.submit_chain({"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask"})
    path = f"/runs/api/runs/{run.run_id}/signals/ask"
    item = f"/runs/api/inbox/{run.run_id}/ask"
    until(lambda: http.get(item).status_code == 200, "the question")
    assert http.get(item).json() in http.get("/runs/api/inbox").json()["items"]
    assert http.get("/runs/inbox").status_code == 200

    for no_json in (b"", b"{" * 5000, b'{"value": "\xff"}'):
        assert http.post(path, content=no_json).status_code == 400
    for wrong in (b"[]", b'{"value": 1, "more": 2}', b'{"value": NaN}', b'{"value": 1e999}', b'{"value": "\\ud800"}'):
        assert http.post(path, content=wrong).status_code == 422
    assert http.post(path, json={"value": {"approved": True}}).json() == {
        "run_id": run.run_id,
        "step": "ask",
        "signal": "taken",
    }
    assert run.result(PATIENCE_S).final_output == {"approved": True}
    assert http.post(path, json={"value": 2}).status_code == 409
    assert http.post(path.replace("ask", "other"), json={"value": 2}).status_code in (404, 409)


# Who may


@pytest.mark.parametrize("headers", [ORIGIN, {"Origin": "http://["}, SAME_SITE, {"Host": "rebound.example"}])
def test_another_page_gets_nothing_and_changes_nothing(
    headers: dict[str, str], deployment: Deployment, http: httpx.Client
) -> None:
    with deployment.blocked_run() as (run, _):
        refused = [
            http.get("/runs/api/runs", headers=headers),
            http.post(f"/runs/api/runs/{run.run_id}/cancel", headers=headers),
        ]
        assert [answer.status_code for answer in refused] == [403, 403]
        assert {answer.json()["error"]["code"] for answer in refused} == {"forbidden"}
        assert run.status() in ("accepted", "running")


def test_with_passwords_under_a_prefix_and_read_only(deployment: Deployment) -> None:
    (deployment.folder / "who.txt").write_text("anna:a-long-password\n")
    with (
        deployment.served("flower", "--basic-auth-file", "who.txt", "--url-prefix", "ops/flower", "--read-only") as url,
        httpx.Client(base_url=url) as http,
    ):
        for path in ("/workers", "/runs/", "/runs/api/runs"):
            nobody = http.get(path)
            assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, 'Basic realm="flower"')
        anna: dict[str, Any] = {"auth": ("anna", "a-long-password"), "headers": {"Host": "flower.example"}}
        assert (
            'data-api="/ops/flower/runs/api" data-base="/ops/flower/runs" data-flower="//flower.example/ops/flower"'
            in http.get("/runs/", **anna).text
        )
        assert 'href="/ops/flower/runs/"' in http.get("/workers", **anna).text
        assert http.get("/runs", **anna).headers["location"] == "/ops/flower/runs/"
        assert http.get("/runs/static/icon.svg").status_code == 200
        assert "runs" in http.get("/runs/api/runs", **anna).json()
        assert http.get("/runs/api/runs", auth=("anna", "wrong")).status_code == 401
        guessed = [http.get("/api/workers", auth=("anna", f"guess {number}")) for number in range(PER_ADDRESS)]
        assert {each.status_code for each in guessed[:-1]} == {401}
        assert (guessed[-1].status_code, guessed[-1].json()["error"]["code"]) == (429, "too_many_failures")
        assert int(guessed[-1].headers["retry-after"]) >= 1
        assert http.get("/workers", **anna).status_code == 200, "who has signed in stays signed in"
        with deployment.blocked_run() as (run, _):
            refused = http.post(f"/runs/api/runs/{run.run_id}/cancel", **anna)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
            assert (
                http.post(f"/runs/api/runs/{run.run_id}/cancel", auth=anna["auth"], headers=ORIGIN).status_code == 403
            )


PUBLIC = {"/healthcheck", "/login", "/logout", "/static/(.*)", ".*"}
"""Flower's paths that need no login: the probe, the login itself, scripts and styles, and what does not exist."""


def test_every_path_of_flower_needs_its_login(deployment: Deployment) -> None:
    specs = [spec if isinstance(spec, tuple) else (spec.regex.pattern.removesuffix("$"), None) for spec in handlers]
    found = {re.sub(r"\(\.[+*]\)", "x", str(spec[0])).removesuffix("/?") for spec in specs}
    public = {re.sub(r"\(\.[+*]\)", "x", each) for each in PUBLIC}
    assert public <= found
    assert {"/metrics", "/", "/tasks/datatable", "/api/task/info/x"} <= found - public

    with (
        deployment.served("flower", FLOWER_BASIC_AUTH="anna:a-long-password") as url,
        httpx.Client(base_url=url) as http,
    ):
        for path in sorted({*(found - public), "/runs/", "/runs/api/runs"}):
            answers = {http.get(path).status_code, http.post(path).status_code} - {405}
            assert answers == {401}, path
        shown = http.get("/metrics", auth=("anna", "a-long-password"))
        assert (shown.status_code, "flower_worker_online" in shown.text) == (200, True)
        assert http.get("/metrics", auth=("anna", "another")).status_code == 401
        assert http.get("/healthcheck").text == "OK"


def test_an_account_with_a_password_is_named_in_the_audit_log_and_without_accounts_nobody(
    deployment: Deployment, http: httpx.Client
) -> None:
    chain = {"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask"}
    first, second = (deployment.client.submit_chain(chain) for _ in range(2))
    (deployment.folder / "accounts.txt").write_text("anna:a-long-password\n")
    with (
        deployment.served("flower", "--basic-auth-file", "accounts.txt") as url,
        httpx.Client(base_url=url, auth=("anna", "a-long-password")) as anna,
    ):
        assert anna.post(f"/runs/api/runs/{first.run_id}/cancel").json()["status"] == "cancelled"
    assert http.post(f"/runs/api/runs/{second.run_id}/cancel").json()["status"] == "cancelled"

    found = [deployment.client.audit(run_id=run.run_id)[0] for run in (first, second)]
    assert [(entry.author, entry.via) for entry in found] == [("anna", "flower"), ("anonymous (claimed)", "flower")]


def test_with_a_provider_only_who_signed_in_may(deployment: Deployment) -> None:
    environment = {"FLOWER_COOKIE_SECRET": SECRET, "FLOWER_AUTH_PROVIDER": "flower.views.auth.GithubLoginHandler"}
    with (
        deployment.blocked_run() as (run, _),
        httpx.Client(timeout=PATIENCE_S) as http,
        deployment.served("flower", "--auth=anna@example.org", **environment) as url,
    ):
        assert http.get(f"{url}/runs/").headers["location"].startswith("/login?next=%2Fruns%2F")
        assert http.get(f"{url}/metrics").status_code == 401
        nobody = http.get(f"{url}/runs/api/runs")
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "signed_out")
        for user, status in (("otto@example.org", 401), ("anna@example.org", 200)):
            cookies = {"Cookie": f"user={create_signed_value(SECRET, 'user', user).decode()}"}
            assert http.get(f"{url}/runs/api/runs", headers=cookies).status_code == status
            assert http.get(f"{url}/metrics", headers=cookies).status_code == status
        path = f"{url}/runs/api/runs/{run.run_id}/cancel"
        assert http.post(path, headers=cookies).status_code == 403  # no browser that says which page asks
        assert http.post(path, headers={**cookies, **ORIGIN}).status_code == 403
        assert run.status() in ("accepted", "running")
        assert http.post(path, headers={**cookies, "Origin": url}).json()["status"] == "cancelled"
    (entry,) = deployment.client.audit(run_id=run.run_id)
    assert (entry.action, entry.by, entry.via, entry.verified) == ("run.cancel", "anna@example.org", "flower", True)


def test_who_follows_a_run_is_let_go_of_when_it_ends(deployment: Deployment) -> None:
    with deployment.blocked_run() as (run, _), httpx.Client(timeout=PATIENCE_S) as http:
        with deployment.served("flower") as url:
            following = http.send(http.build_request("GET", f"{url}/runs/api/runs/{run.run_id}/events"), stream=True)
            pieces = following.iter_text()
            assert next(pieces).startswith("retry: ")
        assert "closed" not in "".join(pieces)  # to its end, without an error


def test_it_does_not_listen_for_others_without_passwords(deployment: Deployment) -> None:
    command = [sys.executable, "-m", "cantata.surfaces.cli", "flower", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "REDIS_URL": deployment.stack.url},
    )

    assert done.returncode == 2
    assert "--basic-auth-file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# With the gateway, and without anything


def test_the_gateways_pages_lead_to_flower(deployment: Deployment) -> None:
    with deployment.served("gateway", CANTATA_FLOWER_URL="https://flower.example/ops") as url:
        assert 'data-flower="https://flower.example/ops"' in httpx.get(f"{url}/pages/").text


def test_runs_go_on_without_flower_and_it_shows_them_when_it_is_back(deployment: Deployment) -> None:
    before = next(each for each in deployment.stack.processes() if each.name == "flower").identity.pid
    with deployment.blocked_run() as (run, release):
        os.kill(before, signal.SIGKILL)
        release()
        assert run.result(PATIENCE_S).success
        until(
            lambda: next(each for each in deployment.stack.processes() if each.name == "flower").identity.pid != before,
            "another Flower",
        )
    with deployment.http() as http:
        until(lambda: is_up(http), "its pages")
        assert http.get(f"/runs/api/runs/{run.run_id}/graph").json()["run"]["status"] == "succeeded"


def test_a_flower_that_is_not_told_of_an_application_says_that_it_shows_none_of_its_workers_tasks(
    deployment: Deployment,
) -> None:
    redis = deployment.client.engine.ledger.redis
    own = next(each for each in deployment.client.fleet.workers() if each.event_exchange)
    other = own.model_copy(update={"name": "tasks", "app": "shop.celery:app", "event_exchange": "celeryev"})
    registry.announce(redis, other)
    try:
        with deployment.served("flower"):
            until(
                lambda: "start Flower with --app shop.celery:app" in (deployment.folder / "flower.log").read_text(),
                "the warning",
            )
    finally:
        registry.retire(redis, "tasks")


def is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False
