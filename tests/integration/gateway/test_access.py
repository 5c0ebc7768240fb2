"""Who may ask a gateway, for whom, how much and how fast."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.integration.gateway.conftest import ANNA, OTTO, Deployment, Gateway
from tests.waiting import until


@pytest.fixture
def anna(guarded: Gateway) -> Iterator[httpx.Client]:
    with guarded.http(ANNA) as client:
        yield client


@pytest.fixture
def otto(guarded: Gateway) -> Iterator[httpx.Client]:
    with guarded.http(OTTO) as client:
        yield client


@pytest.mark.parametrize("token", [None, "no-token-that-is-known", ANNA[:-1], f"{ANNA} "[::-1]])
def test_without_a_known_token_nothing_is_told(guarded: Gateway, token: str | None) -> None:
    with guarded.http(token) as http:
        for path in ("/runs", "/sessions", "/memory", "/nowhere"):
            response = http.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")
        assert http.get("/health").status_code == http.get("/ready").status_code == 200


def test_a_tenant_sees_the_messages_of_its_own_webhooks_only(anna: httpx.Client, otto: httpx.Client) -> None:
    body = {"text": "hello", "webhooks": ["end=http://127.0.0.1:1/mine"]}
    run = anna.post("/turns?wait=40", json=body).json()["run_id"]
    (posting,) = until(lambda: anna.get(f"/runs/{run}/graph").json()["run"]["webhook_runs"], "what posts its end")

    assert anna.get(f"/runs/{posting}").json()["kind"] == "webhook"
    assert otto.get(f"/runs/{posting}").status_code == 404
    assert posting in [each["run_id"] for each in anna.get("/runs?kind=webhook").json()["runs"]]
    assert posting not in [each["run_id"] for each in anna.get("/runs").json()["runs"]]
    assert otto.get("/runs?kind=webhook").json()["runs"] == []
    until(lambda: anna.get(f"/runs/{posting}").json()["status"] in ("failed", "running"), "the attempt")
    assert anna.post(f"/runs/{posting}/cancel").status_code == 200


@pytest.mark.parametrize("webhooks", [["nobody"], ["ftp://example.org"], ["x"] * 11])
def test_webhooks_that_a_run_may_not_have_are_refused(anna: httpx.Client, webhooks: list[str]) -> None:
    chain = {"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask", "webhooks": webhooks}

    for path, body in (("/turns", {"text": "hello", "webhooks": webhooks}), ("/chains", chain)):
        answer = anna.post(path, json=body)
        assert (answer.status_code, "webhooks" in answer.text) == (422, True), answer.text


def test_a_tenant_sees_its_own_only(anna: httpx.Client, otto: httpx.Client, guarded: Gateway) -> None:
    body = {"text": "secret", "session": "shared"}
    key = {"Idempotency-Key": "the-same"}
    run = anna.post("/turns?wait=40", json=body, headers=key).json()
    anna.put("/memory/notes/one", json={"value": 1})
    others = otto.post("/turns?wait=40", json=body, headers=key).json()

    assert run["run_id"] != others["run_id"], "keys are of one tenant"
    for path in ("", "/events"):
        assert otto.get(f"/runs/{run['run_id']}{path}").status_code == 404
    assert otto.post(f"/runs/{run['run_id']}/cancel").status_code == 404
    assert run["run_id"] not in otto.get("/runs?most=1000").text
    assert len(otto.get("/sessions/shared").json()["entries"]) == 2, "only what was said here"
    assert otto.get("/memory/notes/one").status_code == 404
    assert otto.get("/memory").json()["namespaces"] == ["conversations"]
    assert otto.delete("/sessions/shared").json() == {"removed": 2}
    assert len(anna.get("/sessions/shared").json()["entries"]) == 2


def test_a_websocket_needs_a_token_too_and_resumes_no_other_tenants_run(guarded: Gateway) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with guarded.chat("s"):
                pass
        assert refused.value.response.status_code == 401
        assert b"unauthorized" in (refused.value.response.body or b"")
        async with guarded.chat("s", ANNA) as anna, guarded.chat("s", OTTO) as otto:
            run_id = (await anna.ask("mine"))["run_id"]
            await otto.send({"resume": {run_id: 0}})
            frame = await otto.frame()
            assert (frame["type"], frame["error"]["code"]) == ("error", "unknown_run")

    asyncio.run(main())


def test_a_browser_gives_its_token_as_a_subprotocol(guarded: Gateway) -> None:
    async def main() -> None:
        url = f"{guarded.url.replace('http', 'ws')}/ws/browser"
        async with connect(url, subprotocols=["cantata", f"bearer.{ANNA}"]) as socket:  # type: ignore[list-item]  # only a type of str
            assert socket.subprotocol == "cantata"
        with pytest.raises(InvalidStatus):
            await connect(url, subprotocols=["cantata", "bearer.of-somebody-else"])  # type: ignore[list-item]  # as above

    asyncio.run(main())


def test_tokens_are_never_in_the_log(guarded: Gateway, deployment: Deployment) -> None:
    with guarded.http(ANNA) as http:
        http.get("/runs")

    assert ANNA not in (deployment.folder / "gateway.log").read_text()


PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Host": "evil.example"},
    {"Host": "evil.example", "Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", PAGES)
def test_a_web_page_may_not_ask_a_gateway_without_tokens(gateway: Gateway, headers: dict[str, str]) -> None:
    with gateway.http() as http:
        response = http.post("/turns", json={"text": "spend"}, headers=headers)

    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_web_page_may_not_open_a_websocket_either(gateway: Gateway, origin: str) -> None:
    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{gateway.url.replace('http', 'ws')}/ws/s", additional_headers={"Origin": origin})
        assert refused.value.response.status_code == 403

    asyncio.run(main())


def test_a_page_of_the_gateways_own_address_may_ask(gateway: Gateway) -> None:
    with gateway.http() as http:
        assert http.get("/runs", headers={"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_other_machines_are_let_in_with_tokens_only(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", deployment.stack.url)

    done = CliRunner().invoke(submit, ["gateway", "--host", "0.0.0.0", "--port", "0"])

    assert done.exit_code == 2
    assert "tokens are required" in done.stderr


def test_published_on_loopback_it_listens_everywhere_and_answers_as_on_loopback(deployment: Deployment) -> None:
    with deployment.gateway("--host", "0.0.0.0", CANTATA_PUBLISHED_ON_LOOPBACK="1") as gateway:
        port = gateway.url.rpartition(":")[2]
        assert gateway.url == f"http://0.0.0.0:{port}"

        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
            assert http.get("/runs").status_code == 200
            assert [http.get("/runs", headers=headers).status_code for headers in PAGES] == [403] * len(PAGES)


def test_a_taken_port_is_told_in_one_sentence(
    gateway: Gateway, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", deployment.stack.url)

    done = CliRunner().invoke(submit, ["gateway", "--port", gateway.url.rpartition(":")[2]])

    assert done.exit_code == 3
    assert "cannot listen" in done.stderr


@pytest.fixture(scope="module")
def small(deployment: Deployment) -> Iterator[Gateway]:
    """A gateway that takes little, of tenants of its own."""
    tokens = json.dumps({f"token-of-small-{i}-0123456789": f"small-{i}" for i in range(3)})
    with deployment.gateway("--max-bytes", "2000", "--rate", "1", CANTATA_GATEWAY_TOKENS=tokens) as gateway:
        yield gateway


def test_a_body_that_is_too_large_is_refused_however_it_comes(small: Gateway) -> None:
    body = json.dumps({"text": "x" * 3000}).encode()
    with small.http("token-of-small-0-0123456789") as http:
        told = http.post("/turns", content=body, headers={"Content-Type": "application/json"})
        streamed = http.post(
            "/turns", content=iter([body[:1500], body[1500:]]), headers={"Content-Type": "application/json"}
        )

    assert [(r.status_code, r.json()["error"]["code"]) for r in (told, streamed)] == [(413, "too_large")] * 2


def test_a_message_that_is_too_large_ends_the_connection(small: Gateway) -> None:
    async def main() -> None:
        async with small.chat("s", "token-of-small-0-0123456789") as chat:
            await chat.say("x" * 3000)
            with pytest.raises(ConnectionClosed) as closed:
                await chat.frame()
            assert closed.value.rcvd
            assert closed.value.rcvd.code == 1009

    asyncio.run(main())


def test_who_asks_too_fast_is_told_when_to_come_again_and_others_are_not(small: Gateway) -> None:
    with small.http("token-of-small-1-0123456789") as http, small.http("token-of-small-2-0123456789") as other:
        statuses = [http.get("/memory").status_code for _ in range(20)]
        response = until(lambda: (again := http.get("/memory")).status_code == 429 and again, "a refusal", pause_s=0)

        assert statuses[:10] == [200] * 10
        assert 1 <= int(response.headers["retry-after"]) <= 3
        assert other.get("/memory").status_code == 200


def test_messages_count_as_requests(small: Gateway, models: ScriptedModels) -> None:
    async def main() -> None:
        async with small.chat("fast", "token-of-small-2-0123456789") as chat:
            for _ in range(15):
                await chat.send({"resume": {"none": 0}})
            codes = [(await chat.frame())["error"]["code"] for _ in range(15)]
        assert "rate_limited" in codes

    asyncio.run(main())


WRONG_TOKENS = [
    "",
    "[]",
    "{}",
    "short: anna",
    "a token with spaces 123: anna",
    "token-of-anna-0123456789: 7",
    "token-of-anna-0123456789: {a: 1}",
]


@pytest.mark.parametrize("text", WRONG_TOKENS)
def test_a_wrong_file_of_tokens_is_refused_without_showing_one(
    tmp_path: Path, deployment: Deployment, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", deployment.stack.url)
    file = tmp_path / "tokens.yaml"
    file.write_text(text)

    done = CliRunner().invoke(submit, ["gateway", "--tokens-file", str(file), "--port", "0"])

    assert done.exit_code == 2, done.output
    assert "0123456789" not in done.stderr
    assert "spaces" not in done.stderr


def test_tokens_are_read_again_when_their_file_changes(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    first, second = "token-that-goes-012345", "token-that-comes-01234"
    file.write_text(f"{first}: anna\n")

    with (
        deployment.gateway("--tokens-file", str(file)) as gateway,
        gateway.http(first) as old,
        gateway.http(second) as new,
    ):
        assert (old.get("/runs").status_code, new.get("/runs").status_code) == (200, 401)

        file.write_text("{not: [valid")
        until(lambda: "tokens_not_read" in (deployment.folder / "gateway.log").read_text(), "the error")
        file.unlink()
        assert old.get("/runs").status_code == 200, "those read before are valid"

        (tmp_path / "next.yaml").write_text(f"{second}: {{tenant: otto, scopes: [read]}}\n")
        (tmp_path / "next.yaml").rename(file)  # as Kubernetes does
        until(lambda: new.get("/runs").status_code == 200, "the new token", pause_s=0.5)  # unknown ones are throttled
        assert old.get("/runs").status_code == 401
        assert new.post("/turns", json={"text": "x"}).status_code == 403
