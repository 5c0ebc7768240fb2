"""Each path of the gateway, over real sockets, on real workers."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from cantata.client.client import Client
from cantata.flows.wire import ChainResponse
from cantata.ledger.redis.keys import shard_key
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import ANNA, CONFIG, OTTO, PATIENCE_S, Deployment, Gateway, Json
from tests.waiting import until

ADDING = {"nodes": [{"node_id": "sum", "kind": "tool", "name": "add", "input": {"a": 2, "b": 3}}], "entry_node": "sum"}


def asked(http: httpx.Client, text: str, **more: object) -> Json:
    """A turn that is over."""
    response = http.post("/turns?wait=40", json={"text": text, **more})
    assert response.status_code == 200, response.text
    state: Json = response.json()
    return state


def events(text: str) -> list[Json]:
    """The events of a stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def test_a_turn_is_answered_while_the_caller_waits(http: httpx.Client) -> None:
    state = asked(http, "hello")

    assert (state["kind"], state["status"], state["result"]["output"]) == ("turn", "succeeded", "echo: hello")
    assert http.get(state["links"]["self"]).json() == state


def test_a_turn_goes_on_without_its_caller_and_is_found_later(http: httpx.Client) -> None:
    response = http.post("/turns", json={"text": "later"})

    assert response.status_code == 202
    assert response.json()["result"] is None
    found = http.get(response.headers["location"], params={"wait": 40}).json()
    assert found["result"]["output"] == "echo: later"


def test_waiting_ends_in_time_with_what_is_known(http: httpx.Client, models: ScriptedModels) -> None:
    models.script([{"match": "^slow$", "reply": "done", "delay_s": 60}])

    response = http.post("/turns?wait=0.2", json={"text": "slow"})

    assert response.status_code == 202
    run_id = response.json()["run_id"]
    assert http.get(f"/runs/{run_id}?wait=0.1").json()["status"] in ("accepted", "running")
    assert http.post(f"/runs/{run_id}/cancel").json()["status"] == "cancelled"


def test_a_chain_is_run(http: httpx.Client) -> None:
    response = http.post("/chains?wait=40", json=ADDING)

    assert response.status_code == 200, response.text
    assert (response.json()["kind"], response.json()["result"]["final_output"]) == ("chain", 5)


def test_a_refused_chain_is_answered_as_chains_are(http: httpx.Client) -> None:
    response = http.post("/chains", json={**ADDING, "entry_node": "smu", "correlation_id": "c", "id": "m1"})

    assert response.status_code == 422
    answer = ChainResponse.model_validate(response.json())
    assert answer.error is not None
    assert (answer.run_id, answer.req_id, answer.correlation_id, answer.success) == ("", "m1", "c", False)
    assert answer.error.code == "bad_entry"
    assert [fault.where for fault in answer.error.faults] == ["entry_node"]


def test_a_step_that_waits_is_given_its_value(http: httpx.Client) -> None:
    waiting = {"entry_node": "ok", "nodes": [{"node_id": "ok", "kind": "wait"}]}
    run_id = http.post("/chains", json=waiting).json()["run_id"]

    given = http.post(f"/runs/{run_id}/signals/ok", json={"value": {"approved": True}})
    late = http.post(f"/runs/{run_id}/signals/ok", json={"value": 2})
    unknown = http.post("/runs/nosuchrun/signals/ok", json={"value": 1})

    assert given.json()["signal"] in ("taken", "kept")
    assert http.get(f"/runs/{run_id}?wait=40").json()["result"]["final_output"] == {"approved": True}
    assert (late.status_code, unknown.status_code) == (409, 404)
    assert http.post(f"/runs/{run_id}/signals/ok", json={}).status_code == 422


def test_a_mistyped_signal_is_refused_with_the_steps_that_wait(http: httpx.Client) -> None:
    waiting = {"entry_node": "approval", "nodes": [{"node_id": "approval", "kind": "wait"}]}
    run_id = http.post("/chains", json=waiting).json()["run_id"]
    until(
        lambda: http.get(f"/runs/{run_id}/steps/approval").json().get("step", {}).get("state") == "waiting_signal",
        "the step to wait",
    )

    mistyped = http.post(f"/runs/{run_id}/signals/aproval", json={"value": True})

    assert mistyped.status_code == 404
    assert mistyped.json()["error"]["message"].endswith(
        "waits for a signal; waiting: 'approval'; did you mean 'approval'?"
    )


@pytest.mark.parametrize("step", ["ask", "asking/ask", "asking%2Fask"])
def test_a_step_of_a_named_chain_is_signalled_by_its_own_id_or_the_whole(http: httpx.Client, step: str) -> None:
    run_id = http.post("/turns", json={"text": "hello", "workflow": "asking"}).json()["run_id"]

    given = http.post(f"/runs/{run_id}/signals/{step}", json={"value": "yes"})

    assert given.json()["signal"] in ("taken", "kept")
    assert http.get(f"/runs/{run_id}?wait=40").json()["result"]["output"] == "yes"


def test_the_same_key_gives_the_same_run_and_another_request_with_it_is_refused(http: httpx.Client) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}

    runs = {http.post("/turns", json={"text": "once"}, headers=key).json()["run_id"] for _ in range(3)}
    chains = {http.post("/chains", json=ADDING, headers=key).json()["run_id"] for _ in range(3)}
    other = http.post("/turns", json={"text": "twice"}, headers=key)

    assert len(runs) == len(chains) == 1
    assert runs.isdisjoint(chains)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "key_used")


def test_runs_are_listed_newest_first(http: httpx.Client) -> None:
    run_ids = [asked(http, f"number {i}")["run_id"] for i in range(3)]

    listed = http.get("/runs?most=3").json()["runs"]

    assert [run["run_id"] for run in listed] == run_ids[::-1]
    assert {run["status"] for run in listed} == {"succeeded"}


def test_events_resume_at_any_offset_without_gap_or_repeat(http: httpx.Client) -> None:
    run_id = asked(http, "one two three")["run_id"]
    whole = events(http.get(f"/runs/{run_id}/events").text)

    assert [event["seq"] for event in whole] == list(range(1, len(whole) + 1))
    assert whole[-1]["type"] == "closed"
    for seq in range(1, len(whole)):
        by_header = events(http.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": str(seq)}).text)
        by_query = events(http.get(f"/runs/{run_id}/events?after={seq}").text)
        assert by_header == by_query == whole[seq:]


def test_a_stream_that_was_read_to_its_end_is_not_asked_again(http: httpx.Client) -> None:
    run_id = asked(http, "short")["run_id"]
    last = events(http.get(f"/runs/{run_id}/events").text)[-1]["seq"]

    assert http.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": str(last)}).status_code == 204
    assert http.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": "nonsense"}).status_code == 422


def test_a_reader_that_is_cut_off_in_the_middle_misses_nothing(http: httpx.Client, models: ScriptedModels) -> None:
    models.script([{"reply": "a b c d e f", "chunk_delay_s": 0.1}])
    run_id = http.post("/turns", json={"text": "slowly"}).json()["run_id"]

    seen: list[Json] = []
    while not seen or seen[-1]["type"] != "closed":
        headers = {"Last-Event-ID": str(seen[-1]["seq"])} if seen else {}
        with http.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
            seen += first_event(response)

    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert "".join(event["text"] for event in seen if event["type"] == "delta") == "a b c d e f"


def first_event(response: httpx.Response) -> list[Json]:
    return next(found for line in response.iter_lines() if (found := events(line)))


def test_sessions_are_listed_shown_and_cleared(http: httpx.Client) -> None:
    session = "a b/ç"
    path = "/sessions/a%20b%2F%C3%A7"

    asked(http, "hello", session=session)

    assert session in [info["session"] for info in http.get("/sessions").json()["sessions"]]
    shown = http.get(path).json()
    assert [(entry["role"], entry["content"]) for entry in shown["entries"]] == [
        ("user", "hello"),
        ("assistant", "echo: hello"),
    ]
    assert http.delete(path).json() == {"removed": 2}
    assert http.get(path).status_code == 404


def test_a_session_shows_the_turn_under_way(http: httpx.Client, models: ScriptedModels) -> None:
    models.script([{"delay_s": 60}])
    run_id = http.post("/turns", json={"text": "slow", "session": "busy"}).json()["run_id"]

    assert http.get("/sessions/busy").json()["waiting"] == [run_id]

    http.post(f"/runs/{run_id}/cancel")


@pytest.mark.parametrize("key", ["plain", "with/slash", "line\nend", "a:b {c}", "ключ", "%2F", " "])
def test_memory_keeps_values_under_any_key(http: httpx.Client, key: str) -> None:
    path = f"/memory/things/{quote(key, safe='')}"
    value = {"key": key, "list": [1, None, "ä"]}

    assert http.get(path).status_code == 404
    assert http.put(path, json={"value": value}).json()["value"] == value
    assert http.get(path).json() == {"namespace": "things", "key": key, "value": value}
    assert http.get("/memory/things").json()["keys"] == [key]
    assert "things" in http.get("/memory").json()["namespaces"]
    assert http.delete(path).json() == {"removed": 1}
    assert http.delete(path).json() == {"removed": 0}


def test_null_is_a_value(http: httpx.Client) -> None:
    http.put("/memory/things/nothing", json={"value": None, "ttl_s": 60})

    assert http.get("/memory/things/nothing").json()["value"] is None


WRONG = [
    ("/turns", b'{"txt": "hello"}', 422, "unknown key 'txt'; did you mean 'text'?"),
    ("/turns", b'{"text": ""}', 422, "empty"),
    ("/turns", b'{"text": "x", "agent": "ehco"}', 422, "did you mean 'echo'?"),
    ("/turns", b'{"text": "x", "agent": "echo", "session": ""}', 422, "session"),
    ("/turns", b'{"text": "x", "timeout_s": -1}', 422, "more than 0"),
    ("/turns", b'{"text": "\\ud800"}', 422, ""),
    ("/turns", b'{"text": NaN}', 422, ""),
    ("/turns", b'{"text"', 400, "body: line 1: this is not JSON: Expecting ':' delimiter (column 8)"),
    ("/turns", b'{"text": "x", }', 400, "this is not JSON"),
    ("/chains", b"{nodes: [], entry_node: x}", 400, "this is not JSON"),
    ("/turns", b"\xff", 400, "UTF-8"),
    ("/turns", b"[]", 400, "JSON object; /openapi.json shows an example"),
    ("/turns", b"", 400, "JSON object"),
    ("/turns", b'{"a":' * 2000 + b"1" + b"}" * 2000, 422, "deeper than 128 levels"),
    ("/chains", b'{"nodes": [], "entry_node": "x"}', 422, ""),
    (
        "/chains",
        b'{"nodes": [{"node_id": "a", "kind": "tool", "name": "ad"}], "entry_node": "a"}',
        422,
        "did you mean 'add'?",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), WRONG)
def test_bad_input_is_told_in_one_shape(http: httpx.Client, path: str, body: bytes, status: int, said: str) -> None:
    response = http.post(path, content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert said in error["message"]
    assert set(error) - {"node_id", "index"} == {
        "code",
        "message",
        "faults",
    }  # a refused chain is answered as chains are


def test_every_fault_of_a_chain_is_told(http: httpx.Client) -> None:
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "no"},
        {"node_id": "b", "kind": "agent", "name": "nobody", "deps": ["c"]},
    ]

    faults = http.post("/chains", json={"nodes": nodes, "entry_node": "a"}).json()["error"]["faults"]

    assert len(faults) >= 3


@pytest.mark.parametrize("path", ["/runs/none", "/runs/none/events", "/sessions/none", "/nowhere", "/memory/a/"])
def test_what_is_not_there_is_not_found(http: httpx.Client, path: str) -> None:
    response = http.get(path)

    assert response.status_code == 404
    assert response.json()["error"]["message"]


def test_another_method_and_another_type_are_refused(http: httpx.Client) -> None:
    assert http.put("/turns", json={}).status_code == 405
    assert http.post("/turns", content=b"text=x", headers={"Content-Type": "text/plain"}).status_code == 415


def test_the_gateway_lives_and_is_ready(http: httpx.Client) -> None:
    assert http.get("/health").json() == http.get("/ready").json() == {"status": "ok"}


@pytest.fixture
def lonely(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway at a database of the same server where nobody works."""
    url = deployment.stack.url.replace("virtual_host=0", "virtual_host=7")
    with deployment.gateway(REDIS_URL=url) as gateway:
        yield gateway


def test_a_gateway_without_workers_lives_but_is_not_ready(lonely: Gateway) -> None:
    with lonely.http() as http:
        assert http.get("/health").status_code == 200
        response = http.get("/ready")

    assert response.status_code == 503
    assert "no worker serves queue 'agents'" in response.json()["error"]["message"]


@pytest.mark.slow("a sweep must be missing for 10 s before anybody may say so")
def test_a_gateway_is_not_ready_while_no_sweep_is_complete(deployment: Deployment, http: httpx.Client) -> None:
    with Client(deployment.stack.url) as client:
        revoked = f"{shard_key(client.redis, 63)}:revoked"
        client.redis.set(revoked, "a text")  # so one list of each sweep cannot be read
        try:
            refused = until(
                lambda: (found := http.get("/ready")).status_code == 503 and found, "a gateway that is not ready"
            )
        finally:
            client.redis.delete(revoked)

    message = refused.json()["error"]["message"]
    assert "no complete sweep (shards: revoked: WRONGTYPE" in message
    assert "timers do not fire, and lost steps are not recovered" in message
    until(lambda: http.get("/ready").status_code == 200, "a gateway that is ready again")


def test_ctrl_c_ends_it_without_an_error_though_someone_follows_a_run(
    deployment: Deployment, models: ScriptedModels
) -> None:
    models.script([{"delay_s": 60}])
    with deployment.gateway() as gateway, gateway.http() as http:
        run_id = http.post("/turns", json={"text": "slow"}).json()["run_id"]
        with http.stream("GET", f"/runs/{run_id}/events") as stream:
            first_event(stream)
            gateway.process.send_signal(signal.SIGINT)
            gateway.process.wait(timeout=30)
    with Client(deployment.stack.url) as client:
        client.run(run_id).cancel()


def test_what_others_submit_is_seen_too(http: httpx.Client, deployment: Deployment) -> None:
    with Client(deployment.stack.url, config=CONFIG) as client:
        run = client.submit_turn("from Python")
        assert until(lambda: http.get(f"/runs/{run.run_id}?wait=20").json()["status"] == "succeeded", "the end")


def test_a_schedule_is_created_shown_paused_triggered_and_deleted_by_its_tenant_only(guarded: Gateway) -> None:
    daily = {"cron": "0 7 * * *", "timezone": "Europe/Berlin", "chain": "adding", "input": {"a": 1, "b": 2}}
    with guarded.http(ANNA) as anna, guarded.http(OTTO) as otto:
        created = anna.put("/schedules/daily", json=daily).json()
        assert (created["state"], created["timing"], len(created["next_at"])) == (
            "active",
            "0 7 * * * (Europe/Berlin)",
            5,
        )
        assert [each["name"] for each in anna.get("/schedules").json()["schedules"]] == ["daily"]
        assert otto.get("/schedules").json()["schedules"] == []
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/trigger"),
        ):
            assert otto.request(method, f"/schedules/daily{path}").status_code == 404

        assert anna.post("/schedules/daily/pause", params={"note": "holidays"}).json()["pause_note"] == "holidays"
        triggered = anna.post("/schedules/daily/trigger").json()
        run = anna.get(f"/runs/{triggered['run_id']}", params={"wait": PATIENCE_S}).json()
        assert (triggered["outcome"], run["result"]["final_output"]) == ("new", 3)
        assert anna.post("/schedules/daily/resume").json()["state"] == "active"
        assert anna.post(
            "/schedules/daily/backfill", json={"start": "2026-03-28", "end": "2026-03-29T12:00"}
        ).json() == {"times": 2}
        until(lambda: anna.get("/schedules/daily").json()["fired"] == 3, "the runs of the backfill")

        wrong = anna.put("/schedules/daily", json={**daily, "cron": "0 25 * * *"})
        assert (wrong.status_code, wrong.json()["error"]["faults"][0]["where"]) == (422, "cron")
        assert anna.delete("/schedules/daily").json() == {"removed": 1}
        assert anna.get("/schedules/daily").status_code == 404
