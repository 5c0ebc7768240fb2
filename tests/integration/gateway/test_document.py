"""The OpenAPI document is true, and whatever is asked by it or against it, nothing breaks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cantata.surfaces.gateway.api.bodies import ANSWERS, BATCH, CHAIN, DELIVERED, FORK, MEMORY, SIGNAL, START, TURN
from cantata.surfaces.gateway.api.bulk import BULK
from cantata.surfaces.gateway.api.fleet import DRAIN
from cantata.surfaces.gateway.api.schedules import BACKFILL, SCHEDULE
from tests.examples import thorough
from tests.integration.gateway.conftest import Gateway
from tests.media_types import json_lines  # noqa: F401  # registers it

pytestmark = pytest.mark.timeout(400)

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
ANYTHING = given(
    path=st.sampled_from(["/turns", "/chains", "/memory/a/b", "/runs/x/cancel", "/sessions/x"]),
    method=st.sampled_from(["POST", "PUT", "DELETE", "PATCH", "GET"]),
    body=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["text", "nodes", "value", "agent", "node_id"]), inner, max_size=4)
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "Idempotency-Key": st.binary(max_size=30).map(
                lambda raw: bytes(b for b in raw if b >= 32 and b != 127).strip()
            ),
            "Content-Type": st.sampled_from(
                ["application/json", "text/plain", "", "application/json; charset=latin-1"]
            ),
            "Last-Event-ID": st.sampled_from(["", "-1", "9" * 30, "²", "x"]).map(lambda text: text.encode()),
        },
    ),
)
LOST = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def document(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{gateway.url}/openapi.json").json()
    return found


@pytest.mark.slow("requests are made up for operation after operation")
def test_what_the_document_allows_and_what_it_does_not_is_answered_as_it_says(gateway: Gateway) -> None:
    every, examples = thorough((1, 8), plain=(10, 3))
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json", timeout=40)

    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]

    assert len(operations) == 65
    for operation in operations[::every]:
        ask(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), examples)
        if can_be_asked_wrongly(operation.definition.raw):
            ask(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), examples)


def can_be_asked_wrongly(operation: dict[str, Any]) -> bool:
    """Whether it takes more than names in its path, of which any text is one."""
    return "requestBody" in operation or any(
        (each["in"], each["schema"].keys() - {"title"}, each["schema"].get("type")) != ("path", {"type"}, "string")
        for each in operation.get("parameters", ())
    )


def ask(cases: st.SearchStrategy[Any], examples: int) -> None:
    """Hold the answers to some requests to what the document says."""

    @settings(max_examples=examples, **LOST)  # type: ignore[arg-type]  # of two types
    @given(case=cases)
    def hold(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=40)

    hold()


def test_nothing_that_is_sent_breaks_it(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url, timeout=40) as client:

        @settings(max_examples=thorough(500, plain=100), **LOST)  # type: ignore[arg-type]  # as above
        @ANYTHING
        def hold(path: str, method: str, body: bytes, headers: dict[str, Any]) -> None:
            response = client.request(method, path, content=body, headers=headers)

            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                assert response.json()["error"]["code"]

        hold()


def test_the_examples_of_the_document_are_of_its_schemas(gateway: Gateway) -> None:
    bodies = {
        (path, method): operation["requestBody"]["content"]["application/json"]["example"]
        for path, operations in document(gateway)["paths"].items()
        for method, operation in operations.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }

    assert bodies == {
        ("/turns", "post"): TURN,
        ("/runs/bulk", "post"): BULK,
        ("/workers/{name}/drain", "post"): DRAIN,
        ("/schedules/{name}", "put"): SCHEDULE,
        ("/schedules/{name}/backfill", "post"): BACKFILL,
        ("/chains", "post"): CHAIN,
        ("/chains/{name}", "post"): START,
        ("/workflows/{name}", "post"): START,
        ("/runs/{run_id}/fork", "post"): FORK,
        ("/runs/{run_id}/signals/{step}", "post"): SIGNAL,
        ("/inbox/answers", "post"): ANSWERS,
        ("/memory/{namespace}/{key}", "put"): MEMORY,
        ("/batches", "post"): BATCH,
        ("/batches/{name}/delivered", "post"): DELIVERED,
    }


def test_the_document_needs_no_token_and_says_that_the_rest_does(guarded: Gateway) -> None:
    assert document(guarded)["security"] == [{"token": []}]
