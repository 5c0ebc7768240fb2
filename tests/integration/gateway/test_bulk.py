"""Bulk actions on all runs of a filter, and operators' decisions about queues and workers, over real sockets."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest

from cantata.client import bulk
from cantata.client.bulk import BulkFilter
from cantata.client.client import Client
from cantata.client.records import RunSummary
from cantata.errors import UnavailableError
from tests.integration.gateway.conftest import Deployment, Gateway, Json
from tests.waiting import until

WAITING = {"entry_node": "ok", "nodes": [{"node_id": "ok", "kind": "wait"}]}
BROKEN = {"entry_node": "bad", "nodes": [{"node_id": "bad", "kind": "tool", "name": "broken"}]}
MANY = 120  # more than two parts of a bulk action


@pytest.fixture
def mark() -> str:
    """A name of the runs of one test."""
    return f"bulk-{uuid.uuid4().hex[:10]}"


def submit(http: httpx.Client, request: Json, mark: str) -> str:
    """Submit a chain with a name; return the run."""
    answer = http.post("/chains", json={**request, "chain_id": mark})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def preview(http: httpx.Client, action: str, mark: str, **more: str | list[str]) -> Json:
    """Preview an action."""
    answer = http.get("/runs/bulk/preview", params={"action": action, "q": mark, **more})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def act(http: httpx.Client, action: str, mark: str, until_: float, **more: object) -> list[Json]:
    """Do all parts of an action; return their answers."""
    parts: list[Json] = []
    before: str | None = None
    while before is not None or not parts:
        answer = http.post("/runs/bulk", json={"action": action, "q": mark, "until": until_, "before": before, **more})
        assert answer.status_code == 200, answer.text
        parts.append(answer.json())
        before = parts[-1]["next"]
    return parts


def status_of(http: httpx.Client, run_id: str) -> str:
    """Return the status of a run."""
    return str(http.get(f"/runs/{run_id}").json()["status"])


def waits(http: httpx.Client, run_id: str) -> bool:
    """Return whether a run waits for a person."""
    return status_of(http, run_id) == "waiting"


@pytest.mark.slow("120 runs wait for a person first")
def test_all_matching_runs_are_cancelled_in_parts_and_later_ones_are_not(http: httpx.Client, mark: str) -> None:
    runs = [submit(http, WAITING, mark) for _ in range(MANY)]
    other = submit(http, WAITING, f"other-{mark[5:]}")
    until(lambda: all(waits(http, run) for run in runs[-3:]), "the waits")
    time.sleep(0.002)  # the filter is frozen to the millisecond

    told = preview(http, "cancel", mark)
    late = submit(http, WAITING, mark)
    parts = act(http, "cancel", mark, told["until"])

    assert (told["number"], told["is_exact"], told["newest"]["run_id"], told["oldest"]["run_id"]) == (
        MANY,
        True,
        runs[-1],
        runs[0],
    )
    assert sum(part["done"] for part in parts) == MANY
    assert not [part["refused"] for part in parts if part["refused"]]
    assert all(part["done"] <= 50 for part in parts)
    assert {status_of(http, run) for run in runs} == {"cancelled"}
    assert "cancelled" not in (status_of(http, late), status_of(http, other))
    assert sum(part["done"] for part in act(http, "cancel", mark, told["until"])) == 0, (
        "a repetition finds nothing left"
    )
    assert preview(http, "retry", mark, status="failed")["number"] == 0
    assert preview(http, "retry", mark)["number"] == MANY
    for run in (late, other):
        http.post(f"/runs/{run}/cancel")


def test_failed_runs_are_retried_once_each_though_a_part_is_repeated(http: httpx.Client, mark: str) -> None:
    runs = [submit(http, BROKEN, mark) for _ in range(5)]
    until(lambda: all(status_of(http, run) == "failed" for run in runs), "the failures")
    time.sleep(0.002)

    told = preview(http, "retry", mark, status=["failed", "succeeded"])
    first = act(http, "retry", mark, told["until"])
    again = act(http, "retry", mark, told["until"])

    assert told["number"] == 5
    assert (sum(part["done"] for part in first), sum(part["done"] for part in again)) == (5, 0)
    found = http.get("/runs", params={"q": mark, "most": 100}).json()["runs"]
    assert len(found) == 10
    assert all(next(each for each in found if each["run_id"] == run)["retried_as"] for run in runs)


def test_runs_in_which_a_step_waits_are_signalled(http: httpx.Client, mark: str) -> None:
    runs = [submit(http, WAITING, mark) for _ in range(3)]
    elsewhere = submit(http, {"entry_node": "no", "nodes": [{"node_id": "no", "kind": "wait"}]}, mark)
    until(lambda: all(waits(http, run) for run in (*runs, elsewhere)), "the waits")
    time.sleep(0.002)

    told = preview(http, "signal", mark, step="ok")
    (part,) = act(http, "signal", mark, told["until"], step="ok", value=True)

    assert (told["number"], part["done"], part["refused"]) == (3, 3, [])
    until(lambda: all(status_of(http, run) == "succeeded" for run in runs), "the ends")
    assert waits(http, elsewhere)
    assert http.get("/runs/bulk/preview", params={"action": "signal"}).status_code == 422, "a signal names its step"
    http.post(f"/runs/{elsewhere}/cancel")


def test_a_part_ends_where_redis_takes_no_action_and_no_run_counts_as_refused(
    http: httpx.Client, deployment: Deployment, mark: str
) -> None:
    runs = [submit(http, WAITING, mark) for _ in range(3)]
    until(lambda: all(waits(http, run) for run in runs), "the waits")
    time.sleep(0.002)
    wanted = BulkFilter(action="cancel", q=mark, until=preview(http, "cancel", mark)["until"])
    asked: list[str] = []

    def cancel(run: RunSummary) -> str:
        asked.append(run.run_id)
        raise UnavailableError("Redis is full")

    with Client(deployment.stack.url) as client, pytest.raises(UnavailableError, match="Redis is full"):
        bulk.act(client.of(None), wanted, cancel, before=None)

    assert asked == [runs[-1]], "each of the others would wait for Redis too"
    assert sum(part["done"] for part in act(http, "cancel", mark, wanted.until or 0.0)) == 3


@pytest.fixture(scope="module")
def tokens(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of a tenant with two tokens, and of another tenant."""
    rights = {
        "starts": {"tenant": "bulk", "scopes": ["submit", "signal", "read"]},
        "reads": {"tenant": "bulk", "scopes": ["read", "signal"]},
        "watches": {"tenant": "bulk", "scopes": ["read"]},
        "stranger": {"tenant": "else", "scopes": ["submit", "signal", "read"]},
        "admin": {"tenant": "bulk", "scopes": ["admin"]},
        "operator": {"tenant": "", "scopes": ["admin"], "name": "olga"},
    }
    given = {f"token-of-{name}-0123456789": {"name": name, **each} for name, each in rights.items()}
    with deployment.gateway("--rate", "10000", CANTATA_GATEWAY_TOKENS=json.dumps(given)) as gateway:
        yield gateway


def test_each_run_of_a_bulk_action_needs_the_rights_of_a_single_one(tokens: Gateway, mark: str) -> None:
    with (
        tokens.http("token-of-starts-0123456789") as starter,
        tokens.http("token-of-reads-0123456789") as reader,
        tokens.http("token-of-stranger-0123456789") as stranger,
    ):
        run = submit(starter, WAITING, mark)
        until(lambda: waits(starter, run), "the wait")
        time.sleep(0.002)
        told = preview(reader, "cancel", mark)
        assert told["number"] == 1

        (refused,) = act(reader, "cancel", mark, told["until"])
        (own,) = act(starter, "signal", mark, told["until"], step="ok", value=True)
        (theirs,) = act(stranger, "cancel", mark, told["until"])

        assert (refused["done"], refused["refused"][0]["run_id"]) == (0, run)
        assert "lacks the scope 'submit'" in refused["refused"][0]["reason"]
        assert "submitted this run, so another token must approve it" in own["refused"][0]["reason"]
        assert (theirs["done"], theirs["refused"], preview(stranger, "cancel", mark)["number"]) == (0, [], 0)
        assert waits(starter, run)
        assert act(starter, "cancel", mark, told["until"])[0]["done"] == 1


def test_a_token_that_only_reads_signals_no_run_and_each_refusal_is_in_the_audit_log(
    tokens: Gateway, mark: str
) -> None:
    with (
        tokens.http("token-of-starts-0123456789") as starter,
        tokens.http("token-of-watches-0123456789") as watcher,
        tokens.http("token-of-admin-0123456789") as admin,
    ):
        run = submit(starter, WAITING, mark)
        until(lambda: waits(starter, run), "the wait")
        time.sleep(0.002)
        told = preview(watcher, "signal", mark, step="ok")

        (signalled,) = act(watcher, "signal", mark, told["until"], step="ok", value=True)
        (cancelled,) = act(watcher, "cancel", mark, told["until"])
        (own,) = act(starter, "signal", mark, told["until"], step="ok", value=True)

        assert [(part["done"], len(part["refused"])) for part in (signalled, cancelled, own)] == [(0, 1)] * 3
        assert "lacks the scope 'signal'" in signalled["refused"][0]["reason"]
        assert waits(starter, run)
        entries = admin.get("/audit", params={"run": run}).json()["entries"]
        assert [(each["by"], each["action"], each["target"], each["outcome"]) for each in reversed(entries)] == [
            ("watches", "run.signal", "ok", "refused"),
            ("watches", "run.cancel", "", "refused"),
            ("starts", "run.signal", "ok", "refused"),
        ]
        assert starter.post(f"/runs/{run}/cancel").status_code == 200


def test_an_operator_pauses_a_queue_and_everybody_is_told(tokens: Gateway, mark: str) -> None:
    waiting = {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}]}
    with tokens.http("token-of-operator-0123456789") as operator, tokens.http("token-of-starts-0123456789") as starter:
        assert operator.post("/queues/tools/pause").json()["pause"]["by"] == "olga"
        try:
            until(
                lambda: "tools" in {each for row in operator.get("/workers").json()["workers"] for each in row["held"]},
                "the pause",
            )
            run = submit(starter, waiting, mark)
            queue = operator.get("/queues").json()["queues"]["tools"]
            assert queue["paused"]["by"] == "olga"
            assert operator.get("/ready").status_code == 200, "a paused queue is no reason to take the gateway away"
            until(lambda: starter.get(f"/runs/{run}/graph").json()["paused"], "what the run page says")
            assert "by olga" in starter.get(f"/runs/{run}/graph").json()["paused"]["tools"]
            metrics = operator.get("/metrics").text
            assert 'cantata_queue_paused{queue="tools"} 1.0' in metrics
            assert 'cantata_queue_paused{queue="agents"} 0.0' in metrics
            assert operator.get("/load").json()["queues"]["tools"]["work"] == 0, "no worker is started for it"
        finally:
            assert operator.post("/queues/tools/resume").json() == {"queue": "tools"}
        until(lambda: status_of(starter, run) == "succeeded", "the end")
        assert not starter.get(f"/runs/{run}/graph").json()["paused"]
        refused = operator.post("/queues/tools/resume")
        assert (refused.status_code, "is not paused" in refused.text) == (422, True)
        assert "did you mean 'tools'" in operator.post("/queues/tolls/pause").text
        assert "no worker is called 'nobody'" in operator.post("/workers/nobody/drain", json={}).text


def test_an_operator_drains_a_worker_and_lets_it_work_again(tokens: Gateway, mark: str) -> None:
    with tokens.http("token-of-operator-0123456789") as operator, tokens.http("token-of-admin-0123456789") as admin:
        name = next(row["name"] for row in operator.get("/workers").json()["workers"] if "tools" in row["queues"])

        def state() -> str:
            return str(next(row["state"] for row in operator.get("/workers").json()["workers"] if row["name"] == name))

        assert admin.post(f"/workers/{name}/drain", json={}).status_code == 403, "an admin of a tenant is no operator"
        assert operator.post(f"/workers/{name}/drain", json={}).json()["name"] == name
        try:
            until(lambda: state() == "drained", "the drain")
            ready = operator.get("/ready")
            assert (ready.status_code, f"since {name} is drained by olga" in ready.text) == (503, True), ready.text
        finally:
            operator.post(f"/workers/{name}/undrain")
        until(lambda: state() == "serving", "its return")
        until(lambda: operator.get("/ready").status_code == 200, "readiness")
