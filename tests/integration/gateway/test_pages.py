"""What the run pages ask for and do, over real sockets: lists, graphs, steps, forks; and the pages themselves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cantata.client.client import Client
from cantata.client.graphs.run_pages import RunPages
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import ANNA, OTTO, Deployment, Gateway, Json
from tests.waiting import until

STORY = {
    "chain_id": "story",
    "entry_node": "each",
    "initial_input": {"numbers": [1, 2, 3]},
    "nodes": [
        {"node_id": "each", "kind": "map", "items_path": "input.numbers", "map_node": "double", "next_node": "many"},
        {"node_id": "double", "kind": "tool", "name": "add", "input_map": {"a": "item", "b": "item"}},
        {
            "node_id": "many",
            "kind": "branch",
            "condition": "length(each) > `2`",
            "true_node": ["shaky", "sum"],
            "false_node": "few",
        },
        {"node_id": "few", "kind": "tool", "name": "add", "input": {"a": 0, "b": 0}},
        {"node_id": "shaky", "kind": "tool", "name": "flaky", "retry": 1},
        {
            "node_id": "sum",
            "kind": "agent",
            "name": "clerk",
            "input_map": {"text": "join(' ', ['sum', to_string(each)])"},
        },
        {"node_id": "end", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}, "deps": ["shaky", "sum"]},
    ],
}
BROKEN = {
    "entry_node": "good",
    "initial_input": {"a": 1},
    "nodes": [
        {
            "node_id": "good",
            "kind": "tool",
            "name": "add",
            "input_map": {"a": "input.a"},
            "input": {"b": 1},
            "next_node": "bad",
        },
        {"node_id": "bad", "kind": "tool", "name": "broken"},
    ],
}
WAITING = {
    "entry_node": "ok",
    "nodes": [
        {"node_id": "ok", "kind": "wait", "next_node": "after"},
        {"node_id": "after", "kind": "tool", "name": "broken"},
    ],
}


def ended(http: httpx.Client, path: str, body: object) -> str:
    """The id of a run that is over."""
    response = http.post(f"{path}?wait=40", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["run_id"])


def graph(http: httpx.Client, run_id: str, **more: object) -> Json:
    response = http.get(f"/runs/{run_id}/graph", params=more)  # type: ignore[arg-type]  # of several types
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


def step(http: httpx.Client, run_id: str, step_id: str) -> Json:
    response = http.get(f"/runs/{run_id}/steps/{step_id}")
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.http() as client:
        yield client


@pytest.fixture(scope="module")
def story(client: httpx.Client, models: ScriptedModels) -> str:
    """A run with a map, a branch, a join, a step that fails at first, and an agent that calls a tool."""
    models.script(
        [
            {
                "match": "^sum",
                "after_tools": 0,
                "reply": "let me see",
                "tool_calls": [{"name": "add", "arguments": {"a": 4, "b": 5}}],
            }
        ]
    )
    return ended(client, "/chains", STORY)


@pytest.fixture(scope="module")
def broken(client: httpx.Client) -> str:
    """A run that failed."""
    return ended(client, "/chains", BROKEN)


# Lists


def test_runs_are_listed_by_status_kind_and_text(client: httpx.Client, story: str, broken: str) -> None:
    def listed(**asked: object) -> list[str]:
        return [run["run_id"] for run in client.get("/runs", params={"most": 100, **asked}).json()["runs"]]  # type: ignore[dict-item]

    assert {story, broken} <= set(listed())
    assert (broken in listed(status="failed"), story in listed(status="failed")) == (True, False)
    assert {story, broken} <= set(listed(status=["failed", "succeeded"], kind="chain"))
    assert story in listed(q="STORY")
    assert listed(q=story) == [story]
    assert not {story, broken} & set(listed(kind="turn"))
    (run,) = client.get("/runs", params={"q": story}).json()["runs"]
    assert (run["title"], run["target"]) == ("story", "story")
    assert listed(q=story, since=run["created_at"] - 1, until=run["created_at"] + 1) == [story]
    assert listed(q=story, since=run["created_at"] + 1) == listed(q=story, until=run["created_at"] - 1) == []
    assert client.get("/runs", params={"since": "yesterday"}).status_code == 422


def test_runs_costs_queues_and_workers_are_counted(client: httpx.Client, story: str, broken: str) -> None:
    counted = client.get("/runs/counts", params={"kind": "chain"}).json()
    assert counted["is_complete"]
    assert min(counted["counts"]["succeeded"], counted["counts"]["failed"]) >= 1
    (run,) = client.get("/runs", params={"q": broken}).json()["runs"]
    around = {"since": run["created_at"] - 0.0005, "until": run["created_at"] + 0.0005}
    assert client.get("/runs/counts", params=around).json()["counts"] == {"failed": 1}
    (cost,) = client.get("/costs", params={"days": 1}).json()["costs"]
    assert cost["cost_usd"] >= 0
    fleet = client.get("/workers").json()
    assert {queue for worker in fleet["workers"] for queue in worker["queues"]} >= {"coordinator", "agents", "tools"}
    assert fleet["queues"]["tools"]["workers"] >= 1


def test_a_list_goes_on_where_its_page_ended(client: httpx.Client, story: str, broken: str) -> None:
    at_once = client.get("/runs", params={"most": 6}).json()["runs"]
    by_pages: list[Json] = []
    before = None
    while len(by_pages) < len(at_once):
        page = client.get("/runs", params={"most": 1, **({"before": before} if before else {})}).json()
        by_pages += page["runs"]
        before = page["next"]

    assert [run["run_id"] for run in by_pages] == [run["run_id"] for run in at_once]
    assert {story, broken} <= {run["run_id"] for run in at_once}
    assert client.get("/runs", params={"before": "nowhere"}).status_code == 422
    assert client.get("/runs", params={"status": "done"}).status_code == 422


# Graphs


def test_a_graph_shows_edges_taken_and_not_joins_and_folded_maps(client: httpx.Client, story: str) -> None:
    found = graph(client, story)

    steps = {each["id"]: each for each in found["steps"]}
    edges = {(each["source"], each["target"]): (each["label"], each["taken"]) for each in found["edges"]}
    assert {"@start", "each", "each/@gather", "many", "few", "shaky", "sum", "sum/t0", "sum/r1", "end"} == set(steps)
    assert {name: each["state"] for name, each in steps.items() if each["state"] != "done"} == {"few": "skipped"}
    assert edges["many", "shaky"] == edges["many", "sum"] == ("true", True)
    assert edges["many", "few"] == ("false", False)
    assert edges["sum", "sum/t0"] == ("expanded", True)
    assert edges["sum/r1", "end"] == edges["shaky", "end"] == ("done", True)
    (folded,) = found["maps"]
    assert folded == {
        "id": "each",
        "name": "each",
        "prefix": "each",
        "count": 3,
        "waiting": 0,
        "running": 0,
        "done": 3,
        "failed": 0,
        "skipped": 0,
    }
    assert (found["run"]["status"], found["run"]["title"][:6], found["run"]["answer"], found["more"]) == (
        "succeeded",
        "story",
        3,
        False,
    )
    assert found["run"]["request"]["initial_input"] == {"numbers": [1, 2, 3]}


def test_times_rise_from_ready_to_ended(client: httpx.Client, story: str) -> None:
    found = graph(client, story, open="each")

    run = found["run"]
    for each in found["steps"]:
        if each["state"] == "done":
            assert (
                run["created_at"] <= each["ready_at"] <= each["started_at"] <= each["ended_at"] <= run["closed_at"]
            ), each
            assert each["worker"]
    by_id = {each["id"]: each for each in found["steps"]}
    assert by_id["end"]["ready_at"] == max(by_id["shaky"]["ended_at"], by_id["sum/r1"]["ended_at"])


def test_a_map_that_is_opened_shows_its_items(client: httpx.Client, story: str) -> None:
    found = graph(client, story, open=["each", "nothing"])

    assert {each["id"]: each["map"] for each in found["steps"] if each["map"]} == dict.fromkeys(
        ("each/0", "each/1", "each/2"), "each"
    )
    assert ("each", "each/0") in {(each["source"], each["target"]) for each in found["edges"]}


def test_a_graph_grows_as_its_run_does(client: httpx.Client) -> None:
    run_id = client.post("/chains", json=WAITING).json()["run_id"]

    def states() -> dict[str, str]:
        return {each["id"]: each["state"] for each in graph(client, run_id)["steps"]}

    until(lambda: states().get("ok") == "waiting_signal", "the step that waits")
    before = graph(client, run_id)
    assert (states()["after"], before["run"]["status"], before["run"]["answer"]) == ("waiting", "waiting", None)
    assert {each["target"]: each["taken"] for each in before["edges"]} == {"ok": True, "after": None}
    client.post(f"/runs/{run_id}/signals/ok", json={"value": 1})
    client.get(f"/runs/{run_id}", params={"wait": 40})
    after = graph(client, run_id)
    assert after["offset"] > before["offset"]
    assert after["run"]["status"] == "failed"
    last = client.get(f"/runs/{run_id}/events").text.count("\nevent: ")
    assert after["offset"] == last, "all events are accounted for"


# Steps


def test_a_step_shows_what_it_read_did_and_gave(client: httpx.Client, story: str) -> None:
    found = step(client, story, "each%2F1")

    assert (found["given"], found["output"], found["step"]["name"], found["step"]["map"]) == (2, 4, "each [1]", "each")
    assert found["params"]["tool"] == "add"
    assert found["cut"] is False
    assert step(client, story, "each/1") == found, "slashes may stand as they are"


def test_attempts_tell_their_story(client: httpx.Client, story: str) -> None:
    found = until(lambda: (shown := step(client, story, "shaky"))["logs"] and shown, "what was logged")

    assert [(each["attempt"], each["end"]) for each in found["attempts"]] == [(1, "retry"), (2, "done")]
    assert "not yet" in found["attempts"][0]["error"]["message"]
    assert (found["step"]["attempt"], found["step"]["failures"], found["output"]) == (2, 1, "now")
    assert [(line["event"], line["attempt"]) for line in found["logs"] if line["logger"]] == [("it fails at first", 1)]


def test_an_agents_transcript_has_prompt_calls_results_and_answer(client: httpx.Client, story: str) -> None:
    whole, last = step(client, story, "sum"), step(client, story, "sum/r1")

    said = [(each["role"], each["text"]) for each in whole["transcript"]]
    assert said == [
        ("user", "sum [2,4,6]"),
        ("assistant", "let me see"),
        ("tool", "9"),
        ("assistant", "echo: sum [2,4,6]"),
    ]
    (call,) = whole["transcript"][1]["calls"]
    assert (call["name"], call["arguments"]) == ("add", '{"a": 4, "b": 5}')
    assert whole["transcript"][2]["call_id"] == call["id"]
    assert (whole["model"], whole["usage"]["model_calls"]) == ("openai/gpt-4o-mini", 1)
    assert last["transcript"] == whole["transcript"]
    assert "prompt" not in whole["info"]


def test_routers_and_synthesizers_have_transcripts(client: httpx.Client, models: ScriptedModels) -> None:
    models.script([{"match": "Which|agent", "reply": '{"chosen_agent": "clerk"}', "times": 1}])
    routed = ended(client, "/turns", {"text": "who?", "team": "routed"})
    models.script([])
    merged = ended(client, "/turns", {"text": "all of you", "team": "panel"})

    router = next(each["id"] for each in graph(client, routed)["steps"] if each["kind"] == "team.ask")
    asked = step(client, routed, router)["transcript"]
    assert [each["role"] for each in asked] == ["user", "assistant"]
    assert "who?" in asked[0]["text"]
    synthesizer = next(each["id"] for each in graph(client, merged)["steps"] if each["kind"] == "team.synthesize")
    asked = step(client, merged, synthesizer)["transcript"]
    assert asked[0]["text"].startswith("Merge {")
    assert asked[1]["text"] == f"echo: {asked[0]['text']}"


def test_large_values_are_cut(client: httpx.Client) -> None:
    run_id = ended(client, "/turns", {"text": "x" * 100_000, "agent": "echo"})

    found, run = step(client, run_id, "echo"), graph(client, run_id)["run"]

    assert (len(found["output"]), found["cut"]) == (20_000, True)
    assert (len(run["answer"]), run["cut"], len(run["title"])) == (20_000, True, 120)
    assert found["transcript"][0]["cut"] is True


def test_what_is_not_there_is_not_found(client: httpx.Client, story: str) -> None:
    for path in ("/runs/nope/graph", f"/runs/{story}/steps/nope", "/runs/nope/steps/a", "/runs/nope/tasks"):
        response = client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_run")
    assert client.get(f"/runs/{story}/tasks").json() == {"tasks": []}


# Forks and retries


def test_a_failed_run_is_done_anew_once_for_a_key(client: httpx.Client, broken: str) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}

    first = client.post(f"/runs/{broken}/retry", headers=key)
    again = client.post(f"/runs/{broken}/retry", headers=key)
    other = client.post(f"/runs/{broken}/retry")

    assert (first.status_code, first.json()["kind"], first.headers["location"]) == (
        202,
        "chain",
        first.json()["links"]["self"],
    )
    assert again.json()["run_id"] == first.json()["run_id"] != other.json()["run_id"]
    client.get(first.headers["location"], params={"wait": 40})
    client.get(other.headers["location"], params={"wait": 40})
    made = graph(client, first.json()["run_id"])
    steps = {each["id"]: each for each in made["steps"]}
    assert (made["run"]["forked_from"], made["run"]["status"]) == (broken, "failed")
    assert graph(client, broken)["run"]["retried_as"] == other.json()["run_id"]
    assert (steps["good"]["attempt"], steps["good"]["state"], steps["bad"]["attempt"]) == (0, "done", 1), (
        "what was done is taken over"
    )


def test_a_run_is_done_anew_from_a_step_with_another_input(client: httpx.Client, broken: str) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"from_step": "good", "changes": {"input.a": 41}}

    made = client.post(f"/runs/{broken}/fork", json=body, headers=key).json()
    used = client.post(f"/runs/{broken}/fork", json={**body, "changes": {}}, headers=key)
    elsewhere = client.post(f"/runs/{broken}/fork", json={"from_step": "bad"}, headers=key)

    assert client.post(f"/runs/{broken}/fork", json=body, headers=key).json()["run_id"] == made["run_id"]
    assert client.get(f"/runs/{made['run_id']}", params={"wait": 40}).json()["result"]["outputs"]["good"] == 42
    for refused in (used, elsewhere):
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "key_used")


def test_two_runs_are_compared_step_by_step(client: httpx.Client, story: str, broken: str) -> None:
    made = client.post(f"/runs/{broken}/fork", json={"from_step": "good", "changes": {"input.a": 5}}).json()["run_id"]
    client.get(f"/runs/{made}", params={"wait": 40})

    found = client.get(f"/runs/{broken}/compare/{made}").json()

    assert (found["left"]["run_id"], found["right"]["run_id"], found["right"]["forked_from"]) == (broken, made, broken)
    steps = {each["id"]: each for each in found["steps"]}
    assert set(steps) == {"good", "bad"}, "internal steps are left out"
    assert (steps["good"]["same_output"], steps["bad"]["same_output"], steps["bad"]["right"]["state"]) == (
        False,
        None,
        "failed",
    )
    same = client.get(f"/runs/{broken}/compare/{broken}").json()["steps"]
    assert [each["same_output"] for each in same] == [True, None]
    other = {each["id"]: each for each in client.get(f"/runs/{broken}/compare/{story}").json()["steps"]}
    assert (other["good"]["right"], other["sum"]["left"]) == (None, None)


def test_a_fork_that_does_not_fit_is_refused(client: httpx.Client, story: str, broken: str) -> None:
    running = client.post("/chains", json=WAITING).json()["run_id"]

    assert "left nothing to retry" in client.post(f"/runs/{story}/retry").json()["error"]["message"]
    assert "wait until it is over" in client.post(f"/runs/{running}/retry").json()["error"]["message"]
    assert client.post(f"/runs/{broken}/fork", json={"from_step": "nope"}).status_code == 422
    assert client.post(f"/runs/{broken}/fork", json={}).status_code == 422
    assert (
        client.post("/runs/nope/retry").status_code
        == client.post("/runs/nope/fork", json={"from_step": "a"}).status_code
        == 404
    )
    cancelled = client.post(f"/runs/{running}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert {each["state"] for each in graph(client, running)["steps"]} <= {"done", "skipped"}


# Tenants


def test_another_tenants_run_is_not_found(guarded: Gateway) -> None:
    with guarded.http(ANNA) as anna, guarded.http(OTTO) as otto:
        run_id = ended(anna, "/chains", BROKEN)

        own = ended(otto, "/chains", BROKEN)
        assert otto.get(f"/runs/{own}/compare/{run_id}").status_code == 404
        for path in ("graph", "steps/bad", "tasks"):
            assert anna.get(f"/runs/{run_id}/{path}").status_code == 200
            assert otto.get(f"/runs/{run_id}/{path}").status_code == 404
        assert otto.post(f"/runs/{run_id}/retry").status_code == 404
        assert otto.post(f"/runs/{run_id}/fork", json={"from_step": "good"}).status_code == 404
        assert otto.get("/runs", params={"q": run_id}).json()["runs"] == []
        made = anna.post(f"/runs/{run_id}/retry").json()["run_id"]
        assert anna.get(f"/runs/{made}", params={"wait": 40}).json()["status"] == "failed"
        assert otto.get(f"/runs/{made}").status_code == 404, "a fork is of its tenant too"


def test_flower_sees_the_runs_of_all(deployment: Deployment, guarded: Gateway) -> None:
    with guarded.http(OTTO) as otto, Client(deployment.stack.url) as client:
        run_id = ended(otto, "/chains", BROKEN)
        pages = RunPages(client.engine)

        assert [run.run_id for run in client.of(None).list(text=run_id).runs] == [run_id]
        assert pages.graph(None, run_id).run.labels == {"tenant": "otto", "requested_by": "otto"}
        assert client.of("").list(text=run_id).runs == []


# The pages themselves


def test_the_pages_are_open_and_the_rest_is_not(guarded: Gateway) -> None:
    with guarded.http() as http:
        home = http.get("/")
        page = http.get("/pages/run/any%2Fthing")
        script = http.get("/pages/static/app.js")

        assert (home.status_code, home.headers["location"]) == (307, "/pages/home")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert 'data-base="/pages"' in page.text
        assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert http.get("/pages/static/nope.js").status_code == 404
        assert http.get("/runs").status_code == http.get("/pagesX").status_code == 401


def test_a_file_is_sent_once_and_nothing_else_is_allowed_to_load(client: httpx.Client) -> None:
    for path in ("/pages/", "/pages/static/app.js"):
        first = client.get(path)
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})

        assert (again.status_code, again.content) == (304, b"")
        for response in (first, again):
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
            assert "default-src 'self'" in response.headers["content-security-policy"]


def test_our_own_page_may_ask_and_another_may_only_lead_here(
    client: httpx.Client, gateway: Gateway, broken: str
) -> None:
    own = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
    other = {"Origin": "http://localhost:5555", "Sec-Fetch-Site": "same-site"}

    assert client.get("/runs", headers=own).status_code == 200
    assert client.post(f"/runs/{broken}/cancel", headers=own).status_code == 200
    for path in (f"/runs/{broken}/cancel", f"/runs/{broken}/retry"):
        assert client.post(path, headers=other).status_code == 403
    assert client.get("/runs", headers=other).status_code == 403
    assert client.get("/pages/", headers={"Sec-Fetch-Site": "same-site"}).status_code == 200, "a link in Flower"
    assert client.get("/pages/", headers={"Host": "evil.example"}).status_code == 403


def test_the_pages_lead_to_flower_if_it_is_there(deployment: Deployment) -> None:
    with deployment.gateway(CANTATA_FLOWER_URL="http://127.0.0.1:5555/") as gateway, gateway.http() as http:
        assert 'data-flower="http://127.0.0.1:5555"' in http.get("/pages/").text


def test_addresses_have_what_a_proxy_puts_before_them(deployment: Deployment) -> None:
    chain = {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "add", "input": {"a": 1, "b": 2}}]}

    with deployment.gateway("--url-prefix", "/cantata/") as gateway, gateway.http() as http:
        asked = http.post("/cantata/chains?wait=40", json=chain)
        links = asked.json()["links"]
        assert asked.headers["location"] == links["self"] == f"/cantata/runs/{asked.json()['run_id']}"
        assert (
            http.get(links["self"]).json()["status"]
            == http.get(links["self"].removeprefix("/cantata")).json()["status"]
            == "succeeded"
        )
        assert http.get("/").headers["location"] == http.get("/cantata").headers["location"] == "/cantata/pages/home"
        assert http.get("/pages/").text == http.get("/cantata/pages/").text
        assert http.get("/cantata/openapi.json").json()["servers"] == [{"url": "/cantata"}]
        assert http.get("/cantata/nothing").status_code == 404


def test_below_a_prefix_the_same_paths_need_a_token(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text(f"{ANNA}: anna\n")

    with (
        deployment.gateway("--url-prefix", "cantata", "--tokens-file", str(tmp_path / "tokens.yaml")) as gateway,
        gateway.http() as http,
    ):
        opened = {
            path: http.get(path).status_code
            for path in ("/cantata/ready", "/cantata/pages/", "/cantata/runs", "/cantata/pages/../runs")
        }

    assert opened == {
        "/cantata/ready": 200,
        "/cantata/pages/": 200,
        "/cantata/runs": 401,
        "/cantata/pages/../runs": 401,
    }
