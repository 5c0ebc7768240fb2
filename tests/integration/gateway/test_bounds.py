"""Values and times beyond a bound at each route and in a chat: refused with place and bound, and a second tenant notices nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gateway.conftest import ANNA, OTTO, Gateway, Json

TURN = '{"text": "hello", "agent": "echo", %s}'
NODE = '{"node_id": "one", "kind": "tool", "name": "add", "input_map": {"a": "input.a", "b": "input.b"}}'
CHAIN = f'{{"nodes": [{NODE}], "entry_node": "one", %s}}'
DAILY = '{"every": "1d", "turn": {"text": "hello", "agent": "echo"}, %s}'
DEEP = "[" * 65 + "]" * 65
ENDLESS = "[" * 100_000 + "]" * 100_000

VALUES = [
    ("POST", "/chains", CHAIN % '"initial_input": {"a": %s}', "initial_input.a[0]"),
    ("POST", "/chains", CHAIN % '"inputs": {"a": %s}', "inputs.a[0]"),
    ("POST", "/runs/{run}/signals/ask", '{"value": %s}', "value[0]"),
    ("POST", "/inbox/answers", '{"answers": [{"id": "{run}/ask", "value": %s}]}', ".value[0][0]"),
    ("POST", "/runs/{run}/fork", '{"from_step": "ask", "changes": {"input.a": %s}}', "changes.'input.a'[0]"),
    ("PUT", "/memory/things/deep", '{"value": %s}', "value[0]"),
    ("PUT", "/schedules/deep", '{"every": "1d", "chain": "adding", "input": {"a": %s}}', "input.a[0]"),
    ("POST", "/batches/rows/rows", '{"text": %s}', "the row.text[0]"),
]
TIMES = [
    ("POST", "/turns", TURN % '"timeout_s": %s', ("-1", "0", "1e400", "1e12", "true", '"5"', "9" * 400)),
    ("POST", "/chains", CHAIN % '"timeout": %s', ("-1", "1e400", "1e12", "true")),
    ("PUT", "/memory/things/late", '{"value": 1, "ttl_s": %s}', ("-1", "0", "1e400", "1e12", "true")),
    ("PUT", "/schedules/late", DAILY % '"catch_up": %s', ("-1", "1e12", "true", '"99999999d"')),
    ("PUT", "/schedules/late", '{"at": %s, "turn": {"text": "hello", "agent": "echo"}}', ('"0001-01-01"', '"9999-12-31T23:59"', "1e300")),
    ("POST", "/schedules/daily/backfill", '{"start": %s, "end": "2030-01-01"}', ('"0001-01-01"', '"1999-12-31"', '"9999-12-31"')),
    ("GET", "/runs?since=%s", "", ("-1", "0", "1e400", "nan", "inf", "1e15", "true")),
    ("GET", "/runs/counts?until=%s", "", ("-1", "1e400", "nan", "1e15")),
]  # fmt: skip
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def run(guarded: Gateway) -> str:
    """A run of anna that waits, a batch of hers, and a daily schedule."""
    with guarded.http(ANNA) as http:
        http.post("/batches", json={"name": "rows", "agent": "echo"})
        assert http.put("/schedules/daily", content=DAILY % '"note": "x"', headers=JSON).status_code == 200
        chain = {"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask"}
        return str(http.post("/chains", json=chain).json()["run_id"])


@pytest.mark.parametrize(("method", "path", "body", "place"), VALUES)
def test_a_value_beyond_a_bound_is_refused_by_place(
    guarded: Gateway, run: str, method: str, path: str, body: str, place: str
) -> None:
    with guarded.http(ANNA) as http:
        for text, fault in (
            (DEEP, "nested deeper than 64 levels"),
            ("9" * 400, "digits"),
            (ENDLESS, "nested"),
            ("1e999", ""),
        ):
            sent = (body % text).replace("{run}", run)
            response = http.request(method, path.replace("{run}", run), content=sent, headers=JSON)

            assert response.status_code in (400, 422), response.text[:300]
            error = response.json()["error"]
            assert fault in error["message"] or "too large" in error["message"]
            assert len(response.text) < 6000
            if text is DEEP:
                assert place in str([each["where"] for each in error["faults"]] or error["message"]), error
    with guarded.http(OTTO) as http:
        answered = http.post("/turns?wait=30", json={"text": "hello", "agent": "echo"})
        assert answered.json()["result"]["output"] == "echo: hello"


@pytest.mark.parametrize(("method", "path", "body", "times"), TIMES)
def test_a_time_beyond_a_bound_is_refused(
    guarded: Gateway, run: str, method: str, path: str, body: str, times: tuple[str, ...]
) -> None:
    with guarded.http(ANNA) as http:
        for time in times:
            sent = body % time if "%s" in body else None
            response = http.request(method, path.replace("%s", time), content=sent, headers=JSON)

            assert response.status_code == 422, (time, response.text[:300])
        assert http.get("/schedules/daily").json()["pending"] == 0
        assert http.get(f"/runs/{run}").json()["status"] in ("accepted", "running", "waiting")


def test_a_chat_refuses_what_is_beyond_a_bound_and_goes_on(guarded: Gateway) -> None:
    async def main() -> tuple[list[Json], list[Json]]:
        refused = []
        async with guarded.chat("bounds", ANNA) as chat:
            for text in (
                "[" * 100_000,
                TURN % f'"timeout_s": {"9" * 400}',
                TURN % '"timeout_s": true',
                TURN % '"timeout_s": 1e12',
            ):
                await chat.socket.send(text)
                refused.append(await chat.frame())
            await chat.say("hello", agent="echo")
            return refused, await chat.until("result")

    refused, frames = asyncio.run(main())

    assert [frame["type"] for frame in refused] == ["error"] * 4
    assert frames[-1]["status"] == "succeeded"
