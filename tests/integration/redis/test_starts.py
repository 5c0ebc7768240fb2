"""Processes that start while Redis is away, and outages in their life: each waits, says so, and goes on. All they print is JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from cantata import Client
from cantata.flows.definitions import Definitions, Tool
from cantata.operation.embedded import Stack, stack_plan
from tests.integration.redis.servers import HERE, Server, free_port, until
from tests.waiting import when_busy

PASSWORD = "no-process-prints-it-5f1c"
OF_USER = Path(__file__).parent.parent / "user_tasks"
PROCESSES = {
    "coordinator": ("worker", "coordinator", "--name", "coordinator"),
    "agents": ("worker", "agents", "--name", "agents"),
    "tools": ("worker", "tools", "--name", "tools", "--concurrency", "3"),
    "tasks": ("worker", "tasks", "--app", "shop.celery:app", "--name", "tasks"),
    "gateway": ("gateway", "--port", "0"),
    "flower": ("flower", "--port", "0"),
}
READY = {"worker_ready", "gateway_ready", "flower_ready"}
AT_ONCE_S = 3.0
"""In which a process that waits ends; the kernel takes some milliseconds, a busy machine more."""


class Program:
    """A process of ours, and what it printed."""

    def __init__(self, folder: Path, words: Sequence[str], *, cold: bool = False, **environment: str) -> None:
        self._files = [folder / f"{len(list(folder.iterdir()))}-{stream}" for stream in ("out", "err")]
        known = {name: value for name, value in os.environ.items() if name not in ("CANTATA_HOME", "CANTATA_CONFIG")}
        paths = os.pathsep.join([str(OF_USER), *filter(None, [os.environ.get("PYTHONPATH")])])
        usual = {"CANTATA_LOG_FORMAT": "json", "PYTHONPATH": paths, "CANTATA_DRAIN_S": "1", "SHOP_BROKER": "memory://"}
        # An option of Python makes the process start from nothing, not as a fork of one that has imported everything.
        command = [sys.executable, *(["-X", "utf8"] if cold else []), "-P", "-m", "cantata.surfaces.cli", *words]
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=folder, env={**known, **usual, **environment}
            )

    @property
    def text(self) -> str:
        """All that it printed."""
        return "".join(file.read_text("utf-8") for file in self._files)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The same, each line parsed."""
        found = [json.loads(line) for line in self.text.splitlines()]
        assert all(isinstance(line, dict) and "event" in line for line in found)
        return found

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The lines of these events, but for what a step printed."""
        return [line for line in self.lines if line["event"] in names and "step" not in line]

    def said(self, name: str, count: int) -> bool:
        """Return whether there are so many lines of this event."""
        return len(self.events(name)) == count

    def end(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.process.terminate()
        return self.process.wait(40)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis with a password that does not run yet."""
    server = Server(tmp_path, {"requirepass": PASSWORD}, password=PASSWORD)
    server.kill()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the processes run."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


def url_of(server: Server) -> str:
    return f"redis://:{PASSWORD}@{server.place}/0"


@pytest.mark.slow("six processes wait for Redis, serve, lose it, and end")
def test_each_process_waits_for_redis_and_tells_once_when_it_is_back_and_prints_only_json(
    server: Server, folder: Path
) -> None:
    programs = {
        name: Program(folder, words, cold=name == "gateway", REDIS_URL=url_of(server))
        for name, words in PROCESSES.items()
    }
    try:
        for name, program in programs.items():
            until(partial(program.events, "redis_unavailable"), f"the sentence of {name}")
        server.start()
        server.wait()
        for name, program in programs.items():
            until(partial(program.events, *READY), f"{name}, which said {program.text}")
            assert len(program.events("redis_back")) == 1, name

        tools = {"talk": Tool(function="start_tools:talk")}
        definitions = Definitions(folder=str(Path(__file__).parent), tools=tools)
        with Client(url_of(server), config=definitions) as client:
            nodes = [
                {"node_id": f"n{number}", "kind": "tool", "name": "talk", "input": {"text": str(number)}}
                for number in range(6)
            ]
            runs = [client.submit_chain({"nodes": [node], "entry_node": node["node_id"]}) for node in nodes]
            assert all(run.result(40).success for run in runs)

            server.kill()
            for name, program in programs.items():
                until(partial(program.said, "redis_unavailable", 2), f"the outage in {name}")
            server.start()
            server.wait()
            for name, program in programs.items():
                until(partial(program.said, "redis_back", 2), f"its end in {name}")
            again = client.submit_chain({"nodes": [nodes[0]], "entry_node": "n0"})
            assert again.result(40).success
            (address,) = (line["url"] for line in programs["gateway"].events("gateway_ready"))
            with socket.create_connection((HERE, int(address.rpartition(":")[2]))) as odd:
                odd.sendall(b"no request of HTTP\r\n\r\n")
                assert odd.recv(100), "an answer, and a line of uvicorn"
            server.kill()
            for name, program in programs.items():
                until(partial(program.said, "redis_unavailable", 3), f"another outage in {name}")
    finally:
        statuses = {name: program.end() for name, program in programs.items()}

    assert any("Invalid HTTP request" in line["event"] for line in programs["gateway"].lines)
    assert statuses == dict.fromkeys(PROCESSES, 0)
    for name, program in programs.items():
        away, back = program.events("redis_unavailable"), program.events("redis_back")
        assert (len(away), len(back)) == (3, 2), f"{name}: {away} {back}"
        assert server.place in away[0]["error"]
        assert [line["note"] for line in back] == [f"Redis is back after {line['seconds']:g} s" for line in back]
        assert PASSWORD not in program.text
    said = programs["tools"].lines
    assert {line["event"] for line in said if line.get("logger") == "stdout"} >= {"printed 0", "one", "unfinished"}
    assert all("run" in line and "step" in line for line in said if line["event"].startswith(("printed", "written")))
    (forged, *_) = [line for line in said if "forged" in line["event"]]
    assert forged["event"] == '{"event": "redis_back", "forged": true}', "a tool's text is no event of ours"
    assert any(line["event"] == "uncaught_exception" and line["thread"] == "of a tool" for line in said)
    assert any(line["event"] == "worker: Warm shutdown (MainProcess)" for line in said)


@pytest.mark.slow("processes start from nothing")
@pytest.mark.parametrize("name", ["coordinator", "tools", "gateway", "flower"])
def test_a_process_that_waits_ends_at_once_even_if_what_it_waits_for_never_answers(name: str, folder: Path) -> None:
    with socket.create_server((HERE, 0)) as mute:
        where = {"refused": f"{HERE}:{free_port()}", "mute": f"{HERE}:{mute.getsockname()[1]}"}
        programs = {
            how: Program(folder, PROCESSES[name], REDIS_URL=f"redis://{place}/0") for how, place in where.items()
        }
        until(lambda: programs["refused"].events("redis_unavailable"), "the sentence")
        connected, _ = mute.accept()  # it has asked, and waits for an answer

        with connected:
            for how, program in programs.items():
                since = time.monotonic()
                assert program.end() == 0, f"{how}: {program.text}"
                assert time.monotonic() - since < AT_ONCE_S
                assert all(line["event"] == "redis_unavailable" for line in program.lines)


def test_a_worker_that_waits_answers_its_probe_and_asks_systemd_for_more_time(server: Server, folder: Path) -> None:
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder / "notify"))
        systemd.settimeout(40)
        place = {"NOTIFY_SOCKET": str(folder / "notify"), "CANTATA_METRICS_PORT": str(port)}
        program = Program(folder, PROCESSES["coordinator"], cold=False, **{"REDIS_URL": url_of(server), **place})
        told = [systemd.recv(65_536).decode()]

        assert re.fullmatch(
            r"STATUS=not ready: Redis at .* cannot be reached .*\nEXTEND_TIMEOUT_USEC=[1-9]\d{7}", told[0]
        )
        assert httpx.get(f"http://{HERE}:{port}/metrics", timeout=10).status_code == 200
        server.start()
        while "READY=1" not in told[-1]:
            told.append(systemd.recv(65_536).decode())
        assert program.end() == 0
    assert len(program.events("redis_back")) == 1


def test_a_name_that_is_not_known_is_waited_for_and_told_at_most_once_a_minute(folder: Path) -> None:
    program = Program(folder, PROCESSES["gateway"], REDIS_URL="redis://user:pass-word@redis.invalid:6379/0")

    until(lambda: program.events("redis_unavailable"), "the sentence")
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 2, "several attempts")

    assert program.process.poll() is None
    assert program.end() == 0
    (line,) = program.lines
    assert "redis.invalid:6379" in line["error"]
    assert "pass-word" not in program.text


def test_a_redis_that_loads_its_data_is_waited_for(tmp_path: Path, folder: Path) -> None:
    server = Server(tmp_path, {"enable-debug-command": "yes"})
    try:
        server.wait()
        server.say("DEBUG", "POPULATE", "20000", "key", "10")
        server.say("BGREWRITEAOF")
        until(lambda: server.redis.info("persistence")["aof_base_size"] > 100_000, "the file")
        server.kill()
        server.add("key-load-delay", "1000")
        server.add("loading-process-events-interval-bytes", "1024")
        server.start()
        until(lambda: server.redis.info("persistence")["loading"], "the load")

        program = Program(folder, PROCESSES["gateway"], REDIS_URL=f"redis://{server.place}/0")
        until(lambda: program.events("redis_unavailable"), "the sentence")
        program.end()
    finally:
        server.close()

    (line,) = program.lines
    assert "is loading its data; wait (" in line["error"]


@pytest.mark.slow("Flower calls its broker every five seconds, in a thread that waits for it without end")
def test_a_flower_ends_although_its_calls_wait_for_a_broker_that_is_away(server: Server, folder: Path) -> None:
    server.start()
    server.wait()
    program = Program(folder, PROCESSES["flower"], REDIS_URL=url_of(server))
    until(partial(program.events, "flower_ready"), "Flower")
    server.kill()
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 6, "its call")

    since = time.monotonic()
    assert program.end() == 0
    assert time.monotonic() - since < when_busy(10)
    assert len(program.events("redis_unavailable")) == 1


BROKEN = [
    pytest.param(("worker", "tools", "--concurrency", "0"), {}, 2, "not in the range", id="option"),
    pytest.param(("worker", "tools", "--name", "a b"), {}, 2, "name has letters", id="name"),
    pytest.param(("worker", "tasks", "--app", "nothing_here:app"), {}, 2, "nothing_here", id="app"),
    pytest.param(("worker",), {"CANTATA_DRAIN_S": "soon"}, 2, "CANTATA_DRAIN_S", id="setting"),
    pytest.param(("gateway",), {"CANTATA_CONFIG": "broken.yaml"}, 2, "broken.yaml", id="configuration"),
    pytest.param(("gateway",), {"CANTATA_GATEWAY_TOKENS": "{"}, 2, "CANTATA_GATEWAY_TOKENS", id="tokens"),
    pytest.param(("gateway", "--host", "0.0.0.0"), {}, 2, "tokens are required", id="address"),
    pytest.param(("flower", "--nothing=1"), {}, 2, "no option", id="option of Flower"),
    pytest.param(("flower", "--port", "0"), {"FLOWER_BASIC_AUTH": "anna"}, 2, "name:password", id="login"),
]


@pytest.mark.parametrize(("words", "environment", "status", "said"), BROKEN)
def test_a_start_that_fails_is_told_as_json(
    server: Server, folder: Path, words: tuple[str, ...], environment: dict[str, str], status: int, said: str
) -> None:
    server.start()
    server.wait()
    (folder / "broken.yaml").write_text("version: 1\nagents: {a: {modle: x}}\n")

    program = Program(folder, words, cold=False, **{"REDIS_URL": url_of(server), **environment})

    assert program.process.wait(40) == status, program.text
    assert said in json.dumps(program.lines)
    assert PASSWORD not in program.text


def test_a_worker_whose_configuration_is_broken_says_that_as_json_too(server: Server, folder: Path) -> None:
    server.start()
    server.wait()
    (folder / "broken.yaml").write_text("version: 1\ntools: {a: {function: 'not_there:x'}}\nagents: {a: {modle: x}}\n")

    program = Program(folder, PROCESSES["tools"], REDIS_URL=url_of(server), CANTATA_CONFIG="broken.yaml")
    (fault,) = until(partial(program.events, "imports_failed"), "the fault")
    until(partial(program.events, "worker_ready"), "the worker, which serves what it can")

    assert "modle" in json.dumps(fault["faults"])
    assert program.end() == 0


@pytest.mark.parametrize("name", [*PROCESSES])
def test_a_password_that_is_refused_is_an_error_at_once(server: Server, folder: Path, name: str) -> None:
    server.start()
    server.wait()

    program = Program(folder, PROCESSES[name], REDIS_URL=f"redis://:wrong-one@{server.place}/0")

    assert program.process.wait(40) in (1, 3), program.text
    assert "refuses the user or the password; set them in REDIS_URL" in program.text
    assert not program.events("redis_unavailable")
    assert "wrong-one" not in program.text


@pytest.mark.slow("a stack with all of its processes")
def test_all_processes_of_a_stack_and_its_supervisor_log_only_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flower", "gateway"):
        monkeypatch.setitem(stack_plan.DEFAULT_PORTS, name, 0)  # other tests start stacks too
    with Stack.start(tmp_path / "home", agents=1, tools=1, flower=True, gateway=True) as stack:
        before = next(each for each in stack.processes() if each.name == "tools")
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: next(each for each in stack.processes() if each.name == "tools").pid != before.pid, "another")

    logs = {file.stem: file.read_text().splitlines() for file in stack.home.logs.glob("*.log")}
    assert logs.keys() == {"stack", "valkey", "coordinator", "agents", "tools", "gateway", "flower"}
    events = {
        name: {json.loads(line)["event"] for line in lines} for name, lines in logs.items() if name != "valkey"
    }  # the server is no program of ours
    assert "child_died" in events["stack"]
    assert READY & events["tools"]


def test_a_worker_of_several_processes_prints_json_while_one_of_them_is_killed(server: Server, folder: Path) -> None:
    server.start()
    server.wait()
    program = Program(folder, ("worker", "--concurrency", "2"), REDIS_URL=url_of(server))
    until(lambda: program.events("workers_ready"), "all processes")

    child = next(iter(Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text().split()))
    os.kill(int(child), signal.SIGKILL)

    assert program.process.wait(40) == 1
    assert [line["status"] for line in program.events("worker_ended")][:1] == [-9]
