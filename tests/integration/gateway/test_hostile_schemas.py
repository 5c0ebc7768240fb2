"""JSON Schemas of one tenant that take for ever or name addresses, at a gateway that a second tenant uses."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway.conftest import ANNA, OTTO, TENANTS, Deployment, Gateway, Json
from tests.waiting import until

MAX_S = (
    10.0  # of an answer to another tenant on a busy machine, while 40 validations of at most 0.15 s each compete for it
)
SIGNALS = 40  # more than the gateway has threads
TRIES = "a" * 5000
CATASTROPHE = "^(([a-z])+.)+[A-Z]([a-z])+$"
LEVELS = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"allOf": [{"items": {"$ref": "#/$defs/a"}}, {"items": {"$ref": "#/$defs/a"}}]}},
}
SET = {"node_id": "v", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}


@pytest.fixture(scope="module")
def gateway(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway of two tenants who may answer their own runs."""
    tokens = {token: {**tenant, "approve_own": True} for token, tenant in TENANTS.items()}
    with deployment.gateway("--rate", "10000", CANTATA_GATEWAY_TOKENS=json.dumps(tokens)) as gateway:
        yield gateway


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def ask(gateway: Gateway, token: str, method: str, path: str, **more: Any) -> httpx.Response:
    with gateway.http(token) as client:
        return client.request(method, path, **more)


def chain(answer_schema: Json) -> Json:
    return {"entry_node": "w", "nodes": [{"node_id": "w", "kind": "wait", "answer_schema": answer_schema}]}


def doubling(levels: int) -> Json:
    definitions: Json = {"a0": {"type": "string"}}
    for level in range(levels):
        definitions[f"a{level + 1}"] = {"allOf": [{"$ref": f"#/$defs/a{level}"}] * 2}
    return {"$ref": f"#/$defs/a{levels}", "$defs": definitions}


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that notes what it is asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(a+)+$"}}},
        {"x": {"type": "object", "additionalProperties": {"items": {"patternProperties": {CATASTROPHE: {}}}}}},
        {"x": {"not": doubling(40)}},
        {"x": {"$ref": "#"}},
    ],
)
def test_a_declared_input_that_would_take_for_ever_is_refused_and_the_gateway_goes_on(
    gateway: Gateway, inputs: Json
) -> None:
    body = {"inputs": inputs, "initial_input": {"x": {"k": f"{TRIES}!"}}, "nodes": [SET], "entry_node": "v"}

    answer = ask(gateway, OTTO, "POST", "/chains", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_request")
    assert "inputs.x" in answer.text
    assert ask(gateway, ANNA, "GET", "/health").status_code == 200
    assert ask(gateway, ANNA, "GET", "/runs?most=1").status_code == 200


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema"])
def test_an_address_in_a_schema_is_refused_and_never_asked(gateway: Gateway, keyword: str, tmp_path: Path) -> None:
    private = tmp_path / "private.json"
    private.write_text('{"type": "integer", "minimum": 7}')

    with listener() as (url, asked):
        for address in (f"{url}/latest/meta-data", private.as_uri(), str(private)):
            answer = ask(gateway, OTTO, "POST", "/chains", json=chain({"properties": {"x": {keyword: address}}}))

            assert answer.status_code == 422
            assert f"'w'.answer_schema.properties.x.{keyword}" in answer.text
            assert "nothing is retrieved" in answer.text
        assert asked == []


@pytest.mark.parametrize(
    "schema", [doubling(13), {"$ref": "#"}, {"pattern": "((a?){1000}){1000}"}, {"pattern": "("}, {"type": "strin"}]
)
def test_an_answer_schema_that_cannot_be_used_is_refused_with_the_request(gateway: Gateway, schema: Json) -> None:
    answer = ask(gateway, OTTO, "POST", "/chains", json=chain(schema))

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_request")
    assert "nodes[0] 'w'.answer_schema" in answer.text
    assert "this is not a valid JSON Schema" in answer.text


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (LEVELS, nested(50), "its validation takes more than 50,000 evaluations"),
        ({"additionalProperties": {"pattern": CATASTROPHE}}, {f"k{n}": TRIES for n in range(50)}, "takes too long"),
    ],
)
@pytest.mark.slow("forty signals that each take what one may take")
def test_answers_that_would_take_for_ever_hold_up_nobody(
    gateway: Gateway, schema: Json, value: Any, message: str
) -> None:
    run_id = ask(gateway, OTTO, "POST", "/chains", json=chain(schema)).json()["run_id"]
    until(lambda: ask(gateway, OTTO, "GET", f"/runs/{run_id}").json()["status"] == "waiting", "the wait")

    with ThreadPoolExecutor(SIGNALS) as pool:
        sent = [
            pool.submit(ask, gateway, OTTO, "POST", f"/runs/{run_id}/signals/w", json={"value": value})
            for _ in range(SIGNALS)
        ]
        begun = time.monotonic()
        others = [ask(gateway, ANNA, "GET", path).status_code for path in ("/health", "/runs?most=1", "/health")]
        taken_s = time.monotonic() - begun
        answers = [each.result() for each in sent]

    assert others == [200, 200, 200]
    assert taken_s < MAX_S
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {(422, "bad_answer")}
    assert all(message in answer.text for answer in answers)
    assert ask(gateway, OTTO, "POST", f"/runs/{run_id}/cancel").status_code == 200
