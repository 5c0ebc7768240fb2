"""Batches over HTTP: rows in pieces, results by page, acknowledged by whoever has stored them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cantata.client.client import Client
from cantata.features.batches.batches import batch_target
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import ANNA, CONFIG, OTTO, SCOPES, Deployment, Gateway, Json
from tests.waiting import until

LIMITED = "token-of-limited-0123456789"
TOKENS = {
    ANNA: {"tenant": "anna", "name": "anna", "scopes": SCOPES}, OTTO: {"tenant": "otto", "name": "otto", "scopes": SCOPES},
    LIMITED: {"tenant": "anna", "name": "limited", "scopes": ["chat", "read"], "agents": ["clerk"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway with tokens of two tenants, and one with few rights."""
    with deployment.gateway(CANTATA_GATEWAY_TOKENS=json.dumps(TOKENS)) as gateway:
        yield gateway


@pytest.fixture
def anna(served: Gateway, models: ScriptedModels) -> Iterator[httpx.Client]:
    models.clear()
    with served.http(ANNA) as client:
        yield client


def begin(http: httpx.Client, name: str, **more: Any) -> Json:
    response = http.post("/batches", json={"name": name, **({} if "chain" in more else {"agent": "echo"}), **more})
    assert response.status_code == 201, response.text
    found: Json = response.json()
    return found


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def results(http: httpx.Client, name: str, count: int) -> list[Json]:
    """The undelivered results, when there are so many."""

    def page() -> list[Json] | None:
        found: list[Json] = http.get(f"/batches/{name}/results").json()["rows"]
        return found if len(found) >= count else None

    rows: list[Json] = until(page, f"{count} results of {name}")
    return rows


def test_rows_are_submitted_in_pieces_and_results_acknowledged(anna: httpx.Client) -> None:
    begin(anna, "pieces", concurrency=3)
    rows = [{"text": f"row {number}"} for number in range(5)]

    first = anna.post("/batches/pieces/rows", content=lines(*rows))
    again = anna.post("/batches/pieces/rows", content=lines(*rows))

    assert (first.status_code, first.json()["accepted"], first.json()["next"]) == (202, 3, 3)
    assert (again.status_code, again.json()["error"]["code"]) == (429, "batch_full")
    assert "go on with row 3" in again.json()["error"]["message"]
    found = results(anna, "pieces", 3)
    assert [(row["row"], row["output"]) for row in found] == [(number, f"echo: row {number}") for number in range(3)]
    assert anna.post("/batches/pieces/delivered", json={"rows": [0, 1, 2, 4]}).json()["delivered"] == 3
    rest = anna.post("/batches/pieces/rows?start=3&last=true", content=lines(*rows[3:]))
    assert (rest.json()["accepted"], rest.json()["batch"]["total"]) == (2, 5)
    assert len(results(anna, "pieces", 2)) == 2

    with anna.stream("GET", "/batches/pieces/events") as stream:
        told = stream.iter_lines()
        assert next(told) == "event: batch"
        anna.post("/batches/pieces/delivered", json={"rows": [3, 4]})
        states = [json.loads(line.removeprefix("data: "))["state"] for line in told if line.startswith("data: ")]
    assert states[-1] == "done"
    assert anna.get("/batches/pieces/results").json() == {"rows": [], "next": None}


def test_failed_rows_can_be_read_and_downloaded_after_they_were_delivered(
    anna: httpx.Client, models: ScriptedModels
) -> None:
    begin(anna, "sums", chain="adding")
    anna.post("/batches/sums/rows?last=true", content=lines({"a": 1, "b": 2}, {"a": 1}))
    assert [(row["status"], row["output"]) for row in results(anna, "sums", 2)] == [("succeeded", 3), ("failed", None)]

    assert anna.post("/batches/sums/delivered", json={"rows": [0, 1]}).json()["state"] == "done"

    download = anna.get("/batches/sums/download?failed=true")
    assert [json.loads(line)["row"] for line in download.text.splitlines()] == [1]
    assert 'filename="sums.jsonl"' in download.headers["content-disposition"]
    assert anna.get("/batches").json()["batches"][0]["failed"] == 1


def test_failed_rows_are_retried_with_the_inputs_that_are_kept(anna: httpx.Client, models: ScriptedModels) -> None:
    models.script(
        [
            {"match": "^b$", "times": 1, "status": 400, "reply": "no"},
            {"match": "^b$", "reply": "better"},
            {"reply": "ok"},
        ]
    )
    begin(anna, "again")
    anna.post("/batches/again/rows?last=true", content=lines("a", "b"))
    assert anna.post("/batches/again/retry").json()["error"]["code"] == "batch_state", "it is not done"
    results(anna, "again", 2)
    assert anna.post("/batches/again/delivered", json={"rows": [0, 1]}).json()["failed"] == 1

    retried = anna.post("/batches/again/retry").json()
    assert (retried["state"], retried["round"], retried["delivered"], retried["failed"]) == ("running", 1, 1, 0)
    assert anna.post("/batches/again/retry").json()["round"] == 1, "a repetition is harmless"

    assert [(row["row"], row["output"]) for row in results(anna, "again", 1)] == [(1, "better")]
    done = anna.post("/batches/again/delivered", json={"rows": [1]}).json()
    assert (done["state"], done["failed"]) == ("done", 0)
    assert "no row of it failed" in anna.post("/batches/again/retry").json()["error"]["message"]


def test_a_batch_is_paused_resumed_and_cancelled(anna: httpx.Client, models: ScriptedModels) -> None:
    models.script([{"reply": "late", "delay_s": 60}])
    begin(anna, "states")
    assert anna.post("/batches/states/rows", content=lines("a", "b")).json()["accepted"] == 2

    assert anna.post("/batches/states/pause").json()["state"] == "paused"
    assert anna.post("/batches/states/rows?start=2", content=lines("c")).status_code == 409
    assert anna.post("/batches/states/resume").json()["state"] == "running"
    assert anna.post("/batches/states/cancel").json()["state"] == "cancelled"

    assert {row["status"] for row in results(anna, "states", 2)} == {"cancelled"}
    assert anna.post("/batches/states/pause").status_code == 409


def test_a_batch_takes_no_row_past_its_budget(anna: httpx.Client) -> None:
    begin(anna, "poor", budget_usd=1e-9)
    assert anna.post("/batches/poor/rows", content=lines(*map(str, range(20)))).json()["accepted"] == 10, (
        "what a row costs is not known"
    )
    results(anna, "poor", 10)
    anna.post("/batches/poor/delivered", json={"rows": [*range(10)]})

    refused = anna.post("/batches/poor/rows?start=10", content=lines("x"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "batch_state")
    assert "begin it again with a higher budget_usd" in refused.json()["error"]["message"]
    assert anna.get("/batches/poor").json()["state"] == "budget_spent"
    assert begin(anna, "poor", budget_usd=1.0)["state"] == "running"


def test_a_failed_row_tells_no_price_and_a_retry_asks_no_more_rows_than_the_budget_pays(
    anna: httpx.Client, models: ScriptedModels
) -> None:
    models.script([{"status": 400, "reply": "no"}])
    begin(anna, "dear", budget_usd=1e-9, concurrency=100)
    assert anna.post("/batches/dear/rows", content=lines("bad")).json()["accepted"] == 1
    results(anna, "dear", 1)
    anna.post("/batches/dear/delivered", json={"rows": [0]})
    assert anna.post("/batches/dear/rows?start=1", content=lines(*map(str, range(12)))).json()["accepted"] == 10
    results(anna, "dear", 10)
    anna.post("/batches/dear/delivered", json={"rows": [*range(11)]})
    anna.post("/batches/dear/rows?start=11&last=true", content=lines("x", "y"))
    results(anna, "dear", 2)
    assert anna.post("/batches/dear/delivered", json={"rows": [11, 12]}).json()["state"] == "done"

    models.script([{"reply": "good"}])
    assert anna.post("/batches/dear/retry").json()["submitted"] == 13
    assert len(results(anna, "dear", 10)) == 10
    full = anna.post("/batches/dear/retry")
    anna.post("/batches/dear/delivered", json={"rows": [*range(10)]})
    spent = anna.post("/batches/dear/retry")

    assert (full.status_code, full.json()["error"]["code"]) == (429, "batch_full")
    assert (spent.status_code, anna.get("/batches/dear").json()["state"]) == (409, "budget_spent")
    begin(anna, "dear", budget_usd=1.0, concurrency=100)
    anna.post("/batches/dear/retry")
    results(anna, "dear", 3)
    assert anna.post("/batches/dear/delivered", json={"rows": [10, 11, 12]}).json()["state"] == "done"


def test_nobody_sees_the_batches_of_another_tenant_or_uses_more_than_its_token_allows(
    anna: httpx.Client, served: Gateway
) -> None:
    begin(anna, "mine")

    with served.http(OTTO) as otto:
        assert otto.get("/batches").json() == {"batches": []}
        for path in ("", "/results", "/download", "/events"):
            assert otto.get(f"/batches/mine{path}").status_code == 404
        for path in ("/rows", "/pause", "/cancel", "/retry"):
            assert otto.post(f"/batches/mine{path}", content="").status_code == 404
        assert otto.post("/batches/mine/delivered", json={"rows": [0]}).status_code == 404
    with served.http(LIMITED) as limited:
        assert (
            limited.post("/batches", json={"name": "other", "agent": "echo"}).json()["error"]["code"] == "not_granted"
        )
        assert (
            limited.post("/batches", json={"name": "other", "chain": "adding"}).json()["error"]["code"]
            == "missing_scope"
        )
        assert limited.post("/batches/mine/rows", content=lines("a")).json()["error"]["code"] == "not_granted"
        assert limited.post("/batches/mine/cancel").json()["error"]["code"] == "not_granted"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"text": "a"}\n{"text": }\n', 422, "line 2: no JSON"),
        ("[1]\n", 422, "line 1: expected an object or a text in each line"),
        ('{"a": 1, "b": 2}\n', 422, "row 0 has no field 'text'"),
        ('{"text": NaN}\n', 422, "NaN is not JSON"),
        ('"\\ud800"\n', 422, "text with half a surrogate pair"),
    ],
)  # fmt: skip
def test_a_faulty_row_refuses_its_piece(anna: httpx.Client, body: str, status: int, message: str) -> None:
    begin(anna, "faulty")

    refused = anna.post("/batches/faulty/rows", content=body)

    assert refused.status_code == status
    assert message in refused.json()["error"]["message"]
    assert anna.get("/batches/faulty").json()["submitted"] == 0


def test_a_batch_names_a_known_receiver_and_no_file_of_the_gateway(anna: httpx.Client) -> None:
    for body, message in (
        ({"agent": "nobody"}, "nobody"),
        ({}, "exactly one of agent, team, chain and workflow"),
        ({"chain": "/etc/hostname"}, "the configuration has no chain '/etc/hostname'"),
        ({"agent": "echo", "name": "a/b"}, "a batch's name"),
    ):
        refused = anna.post("/batches", json={"name": "new", **body})
        assert refused.status_code == 422
        assert message in refused.json()["error"]["message"]


def test_a_batch_of_a_provider_takes_no_rows_here_and_its_run_is_no_turn(
    anna: httpx.Client, served: Gateway, deployment: Deployment, models: ScriptedModels
) -> None:
    models.script([{"status": 400, "reply": "no"}])
    with Client(deployment.stack.url, config=CONFIG) as client:
        client.batches.of("anna").open("of-a-program", batch_target(agent="echo"), mode="provider")
        (row,) = client.batch(["a"], agent="echo", name="refused", mode="provider", labels={"tenant": "anna"})

    refused = anna.post("/batches/of-a-program/rows", content=lines("a"))
    again = anna.post(f"/runs/{row.run_id}/retry")
    with served.http(LIMITED) as limited:
        forbidden = limited.post(f"/runs/{row.run_id}/retry")

    assert (refused.status_code, "the command or program that began it" in refused.text) == (409, True)
    assert row.error
    assert again.status_code in (409, 422), again.text
    assert forbidden.status_code == 403, forbidden.text
