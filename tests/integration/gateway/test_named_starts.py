"""Chains and workflows of the configuration, started over HTTP by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.gateway.conftest import ANNA, OTTO, Deployment, Gateway

STARTS = [("chains", "adding", "one"), ("workflows", "total", "total")]


@pytest.fixture(scope="module")
def anna(guarded: Gateway) -> Iterator[httpx.Client]:
    with guarded.http(ANNA) as client:
        yield client


@pytest.mark.parametrize(("section", "name", "node"), STARTS)
def test_a_run_that_is_started_by_a_name_carries_it(anna: httpx.Client, section: str, name: str, node: str) -> None:
    answer = anna.post(f"/{section}/{name}?wait=40", json={"input": {"a": 1, "b": 2}})

    assert answer.status_code == 200, answer.text
    run_id = answer.json()["run_id"]
    assert (answer.json()["status"], answer.json()["result"]["outputs"][node]) == ("succeeded", 3)
    assert answer.json()["result"]["chain_id"] == name
    (listed,) = anna.get("/runs", params={"q": run_id}).json()["runs"]
    assert (listed["title"], listed["target"], listed["kind"]) == (name, name, "chain")
    assert listed["labels"] == {"tenant": "anna", "requested_by": "anna"}


@pytest.mark.parametrize(("section", "name", "node"), STARTS)
def test_the_same_key_gives_the_same_run_and_another_tenant_s_key_another(
    anna: httpx.Client, guarded: Gateway, section: str, name: str, node: str
) -> None:
    path, key = f"/{section}/{name}", {"Idempotency-Key": f"order-17-{name}"}
    first = anna.post(path, json={"input": {"a": 1, "b": 1}}, headers=key).json()["run_id"]

    assert anna.post(path, json={"input": {"a": 1, "b": 1}}, headers=key).json()["run_id"] == first
    for other in ({"input": {"a": 9, "b": 1}}, {"input": {"a": 1, "b": 1}, "webhooks": ["end=http://127.0.0.1:1/x"]}):
        refused = anna.post(path, json=other, headers=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "key_used"), refused.text
    with guarded.http(OTTO) as otto:
        assert otto.post(path, json={"input": {"a": 1, "b": 1}}, headers=key).json()["run_id"] != first


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/chains/nope", {}, 404, "the configuration has no chain 'nope'"),
        ("/chains/addin", {}, 404, "did you mean 'adding'?"),
        ("/workflows/adding", {}, 404, "the configuration has no workflow 'adding'"),
        ("/chains/gateway.yaml", {}, 404, "the configuration has no chain 'gateway.yaml'"),
        ("/chains/..%2Fgateway.yaml", {}, 404, "no"),
        ("/chains/priced", {"input": {"a": "x"}}, 422, '"where":"input.b"'),
        ("/chains/adding", {"inputs": {"a": 1}}, 422, "unknown key 'inputs'; did you mean 'input'?"),
        ("/chains/adding", {"input": {}, "timeout_s": -1}, 422, "timeout_s"),
        ("/chains/adding", {"input": None}, 422, "input"),
        ("/chains/adding", None, 400, "JSON object"),
        ("/chains/adding", {"input": {"a": "x" * 17_000_000}}, 413, "larger than 16.0 MB"),
        ("/chains/adding", {"input": {}, "webhooks": ["nobody"]}, 422, "nobody"),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_reason(
    anna: httpx.Client, path: str, body: dict[str, Any] | None, status: int, message: str
) -> None:
    refused = anna.post(path, json=body)

    assert refused.status_code == status, refused.text
    assert message in refused.text


def test_arguments_that_do_not_fit_the_function_of_a_workflow_fail_its_run(anna: httpx.Client) -> None:
    ended = anna.post("/workflows/total?wait=40", json={"input": {"c": 1}}).json()

    assert ended["status"] == "failed"
    assert "lacks 'a'; it takes a, b" in ended["result"]["error"]["message"]


def test_a_token_that_is_limited_to_names_starts_these(deployment: Deployment) -> None:
    rights = {"tenant": "limited", "scopes": ["submit", "read"], "chains": ["adding", "total"]}
    tokens = {"token-of-limited-0123456789": rights}
    with (
        deployment.gateway(CANTATA_GATEWAY_TOKENS=json.dumps(tokens)) as gateway,
        gateway.http("token-of-limited-0123456789") as http,
    ):
        given = {"input": {"a": 1, "b": 2}}
        assert [
            http.post(f"/{each}?wait=40", json=given).status_code for each in ("chains/adding", "workflows/total")
        ] == [200] * 2
        refused = http.post("/chains/priced", json=given)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_granted")
