"""What is tried on a project that is up, in this order: each part says what it saw, or raises."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import httpx

from tests.compose.engine import Project, service_of
from tests.waiting import until

PATIENCE_S = 90.0
NAP_S = 8.0

Json = dict[str, Any]
Part = Callable[[Project], str]


def gateway(project: Project) -> httpx.Client:
    """A client of the gateway, from outside."""
    headers = {"Authorization": f"Bearer {project.token}"}
    return httpx.Client(base_url=project.address("gateway", 8800), headers=headers, timeout=PATIENCE_S)


def flower(project: Project) -> httpx.Client:
    """A client of Flower, from outside."""
    return httpx.Client(base_url=project.address("flower", 5555), auth=project.login, timeout=PATIENCE_S)


def ask(project: Project, path: str, body: Mapping[str, object]) -> Json:
    """Submit, and wait for the end."""
    with gateway(project) as http:
        response = http.post(path, params={"wait": 60}, json=body)
    assert response.status_code == 200, response.text
    return cast(Json, response.json())


def napping(seconds: float) -> Json:
    """A chain of one step that takes a while."""
    return {
        "entry_node": "nap",
        "nodes": [{"node_id": "nap", "kind": "tool", "name": "nap", "input": {"seconds": seconds}}],
    }


def begin_nap(project: Project, seconds: float) -> tuple[str, str]:
    """Submit a chain whose step takes a while: the run, and the container that began it."""
    with gateway(project) as http:
        run_id = http.post("/chains", json=napping(seconds)).json()["run_id"]
        with http.stream("GET", f"/runs/{run_id}/events") as events:
            for line in events.iter_lines():
                event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                if event.get("type") == "started" and event.get("step") == "nap":
                    return run_id, str(event["worker"]).partition("@")[2][:12]
    raise AssertionError(f"run {run_id} ended without a step that began")


def result(project: Project, run_id: str) -> Json:
    """How a run ended."""
    with gateway(project) as http:
        state = http.get(f"/runs/{run_id}", params={"wait": 60}).json()
    assert state["status"] == "succeeded", state
    return cast(Json, state["result"])


def workers(project: Project) -> list[str]:
    """The workers that say they are there."""
    told = json.loads(project.inside("gateway", "submit", "status", "--json"))
    return [worker["name"] for worker in told["workers"]]


def turn(project: Project) -> str:
    """A turn for one agent, and one for an agent with a tool, which runs in another container."""
    said = ask(project, "/turns", {"text": "hello"})["result"]["output"]
    assert said == "echo: hello", said
    added = ask(project, "/turns", {"text": "2 and 3, please", "agent": "clerk"})["result"]
    assert added["output"] == "It is 5.", added
    return f"{said!r}, and with a tool {added['output']!r}"


def chain(project: Project) -> str:
    """A chain over both kinds of workers."""
    nodes = [
        {"node_id": "sum", "kind": "tool", "name": "add", "input": {"a": 40, "b": 2}, "next_node": "say"},
        {"node_id": "say", "kind": "agent", "name": "echo", "input_map": {"text": "sum"}},
    ]
    ended = ask(project, "/chains", {"entry_node": "sum", "nodes": nodes})["result"]
    assert ended["outputs"] == {"sum": 42, "say": "echo: 42"}, ended
    return str(ended["outputs"])


def doors(project: Project) -> str:
    """Gateway, Flower and pages answer to who may ask, and to nobody else; Redis to nobody outside."""
    seen = []
    with gateway(project) as http:
        for path in ("/ready", "/metrics", "/load", "/pages/"):
            assert http.get(path).status_code == 200, path
        assert "cantata_" in http.get("/metrics").text
        assert http.get("/runs", headers={"Authorization": "Bearer nobodys-0123456789"}).status_code == 401
        seen.append("gateway")
    with flower(project) as http:
        for path in ("/workers", "/runs/", "/runs/api/runs"):
            assert http.get(path).status_code == 200, path
        assert len(http.get("/runs/api/runs").json()["runs"]) >= 3
        assert httpx.get(f"{http.base_url}/workers").status_code == 401
        seen.append("Flower")
    for container in project.containers().values():
        published = [port for port in (container["NetworkSettings"]["Ports"] or {}).values() if port]
        assert bool(published) == (service_of(container) in ("gateway", "flower")), container["Name"]
        assert all(each["HostIp"] == "127.0.0.1" for ports in published for each in ports), published
    told = project.inside(
        "gateway",
        "python",
        "-c",
        "from urllib.request import urlopen; print(urlopen('http://tools:9464/metrics').read())",
    )
    assert "cantata_" in told, told
    return f"{', '.join(seen)} with a token or password, 401 without; metrics of workers inside only"


def scale(project: Project) -> str:
    """Four containers for tools, then all of them are seen working."""
    project.compose("up", "--detach", "--no-build", "--no-recreate", "--wait", "--scale", "tools=4", limit_s=300)
    until(lambda: sum(name.startswith("tools@") for name in workers(project)) == 4, "four workers for tools")
    return ", ".join(workers(project))


def kill(project: Project) -> str:
    """A container is killed in the midst of a step: it is done elsewhere."""
    run_id, victim = begin_nap(project, NAP_S)
    project.kill(victim)
    killed_at = time.monotonic()
    ended = result(project, run_id)
    assert ended["outputs"]["nap"] != victim, ended
    lost_s = time.monotonic() - killed_at - NAP_S
    until(
        lambda: sum(name.startswith("tools@") for name in workers(project)) == 3,
        "the killed worker is no longer counted",
    )
    return f"{victim} was killed, {ended['outputs']['nap']} did the step; {lost_s:.1f} s were lost"


def restart_redis(project: Project) -> str:
    """Redis is started again under a step: what was accepted is still there, and the step ends well."""
    run_id, _ = begin_nap(project, NAP_S)
    project.compose("restart", "redis")
    return f"the step ended in {result(project, run_id)['outputs']['nap']}"


def stop(project: Project) -> str:
    """All are told to stop in the midst of a step: it is finished first, and no container must be killed."""
    run_id, container = begin_nap(project, NAP_S)
    before = ended(project)
    started_at = time.monotonic()
    project.compose("stop")
    took_s = time.monotonic() - started_at
    statuses = {
        name: status for name, status in ended(project).items() if name not in before and "-models-" not in name
    }
    assert statuses, "nothing was running"
    assert set(statuses.values()) == {0}, statuses
    project.compose("up", "--detach", "--no-build", "--wait", "redis", "gateway", limit_s=300)
    assert result(project, run_id)["outputs"]["nap"] == container
    return f"{container} finished its step, {len(statuses)} containers ended with 0 in {took_s:.1f} s; started again, Redis knows the run"


def ended(project: Project) -> dict[str, int]:
    """The exit statuses of the containers that do not run."""
    found = {str(each["Name"]).lstrip("/"): each["State"] for each in project.containers().values()}
    return {name: int(state["ExitCode"]) for name, state in found.items() if not state["Running"]}


def development(project: Project) -> str:
    """Without a token or password, programs of this machine are answered; pages of others, and other names, are not."""
    with httpx.Client(base_url=project.address("gateway", 8800), timeout=PATIENCE_S) as http:
        said = http.post("/turns", params={"wait": 60}, json={"text": "hello"}).json()["result"]["output"]
        assert said == "echo: hello", said
        assert http.get("/pages/").status_code == 200
        for headers in ({"Host": "gateway.example"}, {"Origin": "http://evil.example"}):
            assert http.get("/runs", headers=headers).status_code == 403, headers
    with httpx.Client(base_url=project.address("flower", 5555), timeout=PATIENCE_S) as http:
        assert http.get("/runs/api/runs").status_code == 200
        assert http.get("/runs/api/runs", headers={"Host": "flower.example"}).status_code == 403
    for container in project.containers().values():
        published = [port for port in (container["NetworkSettings"]["Ports"] or {}).values() if port]
        assert all(each["HostIp"] == "127.0.0.1" for ports in published for each in ports), published
    return f"{said!r} without a token; 403 for other names and pages"


DEVELOPMENT_PARTS: dict[str, Part] = {"dev": development}

PARTS: dict[str, Part] = {
    "turn": turn, "chain": chain, "doors": doors, "scale": scale, "kill": kill, "redis": restart_redis, "stop": stop,
}  # fmt: skip
