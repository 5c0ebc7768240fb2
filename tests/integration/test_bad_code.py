"""A worker of a fleet whose files are bad: it harms no run, is not ready, and goes on when they are corrected."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun, Run
from cantata.config import loading
from cantata.engine.fleet import registry
from cantata.flows.events import StepRefused
from cantata.operation.embedded import Stack
from cantata.testing import Rule, ScriptedModels, ToolCall
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
GOOD = "def note(n: int) -> int:\n    return n + 1\n"
BAD = "def note(:\n"
APART = "def later() -> str:\n    return 'here'\n"
FLOW = """
from cantata import Workflow, workflow
import ours

@workflow
async def flow(wf: Workflow, n: int) -> int:
    a = await wf.call(ours.note, n)
    await wf.wait("go")
    return await wf.call(ours.note, a)
"""
CONFIG = """
version: 1
tools:
  note: {function: "ours:note"}
  later: {function: "apart:later"}
agents:
  clerk: {model: openai/gpt-4o-mini, instructions: ["{input}"], tools: [note]}
workflows:
  flow: {function: "flow:flow"}
"""
RULES = [
    Rule(after_tools=0, tool_calls=(ToolCall(name="note", arguments={"n": 4}),)),
    Rule(after_tools=1, reply="five"),
]


class Fleet:
    """Workers that are started and ended one by one, on a Redis of their own."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        for name, text in {"ours.py": GOOD, "flow.py": FLOW, "apart.py": APART, "cantata.yaml": CONFIG}.items():
            (folder / name).write_text(text)
        (folder / "outside.py").write_text(APART.replace("later", "outside"))
        (folder / "client.yaml").write_text(
            CONFIG.replace("tools:", 'tools:\n  outside: {function: "outside:outside"}', 1)
        )
        self.client = Client(redis_url, config=loading.load(folder / "client.yaml"))
        self._environment = {**os.environ, "REDIS_URL": redis_url, "CANTATA_DRAIN_S": "1"}
        self._systemd: dict[str, socket.socket] = {}
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, queue: str, *options: str) -> Path:
        """Start a worker; its heartbeat file, which it touches when it is ready."""
        heartbeat = self.folder / f"{name}.heartbeat"
        command = [sys.executable, "-m", "cantata.surfaces.cli", "worker", queue, "--name", name, "--concurrency", "1"]
        command += ["--config", str(self.folder / "cantata.yaml"), *options]
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = {
                **self._environment,
                "CANTATA_HEARTBEAT_FILE": str(heartbeat),
                "NOTIFY_SOCKET": self._notified(name),
            }
            self._workers[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until(lambda: name in self.named(), f"the worker {name}", PATIENCE_S)
        return heartbeat

    def _notified(self, name: str) -> str:
        """A socket on which the worker of a unit is listened to, as systemd does."""
        self._systemd[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd[name].settimeout(PATIENCE_S)
        self._systemd[name].bind(f"\0cantata-{os.getpid()}-{name}")
        return f"@cantata-{os.getpid()}-{name}"

    def told(self, name: str) -> list[str]:
        """What a worker tells systemd next."""
        return self._systemd[name].recv(4096).decode().splitlines()

    def end(self, name: str) -> None:
        """End a worker as a roll-out does."""
        self._systemd.pop(name).close()
        worker = self._workers.pop(name)
        worker.terminate()
        with suppress(subprocess.TimeoutExpired):
            worker.wait(PATIENCE_S)
        worker.kill()
        worker.wait()

    def end_all(self, queue: str) -> None:
        """End the workers of a queue."""
        for name in [name for name, worker in self.named().items() if queue in worker.queues and name in self._workers]:
            self.end(name)

    def close(self) -> None:
        """End all."""
        for name in [*self._workers]:
            self.end(name)
        self.client.close()

    def named(self) -> dict[str, registry.Worker]:
        """The workers that announce themselves, by name."""
        return {worker.name.partition("@")[0]: worker for worker in registry.workers(self.client.redis)}

    def faults(self) -> dict[str, object]:
        """What workers say that they cannot import, by worker."""
        return {name: worker.code_faults for name, worker in self.named().items() if worker.code_faults}

    def chain(self, tool: str) -> ChainRun:
        """A chain of one tool."""
        given = {"n": 1} if tool == "note" else {}
        return self.client.submit_chain(
            {"nodes": [{"node_id": "x", "kind": "tool", "name": tool, "input": given}], "entry_node": "x"}
        )

    def refusals(self, run: Run) -> list[str]:
        """Why steps of a run were refused."""
        return [event.message for event in run.log(timeout_s=0.0) if isinstance(event, StepRefused)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose one coordinator needs no code."""
    with (
        ScriptedModels(RULES) as models,
        pytest.MonkeyPatch.context() as patch,
        Stack.start(tmp_path_factory.mktemp("stack"), server_only=True) as stack,
    ):
        patch.setenv("OPENAI_API_BASE", models.url)
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        fleet = Fleet(tmp_path_factory.mktemp("code"), stack.url)
        try:
            fleet.start("coordinator", "coordinator")
            yield fleet
        finally:
            fleet.close()


@pytest.mark.slow("workers start one after the other, one with LiteLLM")
def test_bad_code_fails_no_run_and_a_corrected_file_lets_all_finish(fleet: Fleet) -> None:
    good = fleet.start("good", "tools")
    flows = [fleet.client.submit_workflow("flow", {"n": number}) for number in range(6)]
    assert fleet.chain("note").result(PATIENCE_S).final_output == 2
    until(lambda: all(event_of(run, "waiting") for run in flows), "the waits", PATIENCE_S)
    assert good.exists()
    assert fleet.told("good") == ["READY=1", "STATUS=ready: tools"]

    (fleet.folder / "ours.py").write_text(BAD)
    bad = fleet.start("bad", "tools")
    chains = [fleet.chain("note") for _ in range(6)]
    for run in flows[:3]:
        assert run.signal("go", True) == "taken"

    assert [run.result(PATIENCE_S).final_output for run in chains] == [2] * 6
    assert [run.result(PATIENCE_S).final_output for run in flows[:3]] == [2, 3, 4]
    until(lambda: fleet.named()["bad"].code_faults, "what the bad worker cannot import")
    assert "ours" in str(fleet.named()["bad"].code_faults)
    assert not bad.exists(), "a roll-out stops at this worker"
    (status,) = fleet.told("bad")
    assert status.startswith("STATUS=not ready: ")
    assert "SyntaxError: invalid syntax (ours.py, line 1)" in status

    fleet.end("good")
    lenient = fleet.start("lenient", "tools", "--lenient")
    fleet.start("minds", "agents")
    chain, turn = fleet.chain("note"), fleet.client.submit_turn("go", agent="clerk")
    waiting: list[Run] = [chain, turn, *flows[3:]]
    for run in flows[3:]:
        run.signal("go", True)
    until(
        lambda: all(any("ours" in why for why in fleet.refusals(run)) for run in waiting),
        "a refusal of each",
        PATIENCE_S,
    )
    assert {run.status() for run in waiting} == {"running"}
    assert lenient.exists()
    assert not bad.exists()

    (fleet.folder / "ours.py").write_text(GOOD)

    assert [run.result(PATIENCE_S).final_output for run in (chain, *flows[3:])] == [2, 5, 6, 7]
    assert turn.result(PATIENCE_S).output == "five"
    until(bad.exists, "the readiness of the worker whose file is corrected", PATIENCE_S)
    assert fleet.told("bad") == ["READY=1", "STATUS=ready: tools"]
    with suppress(TimeoutError):
        until(lambda: not fleet.faults(), "no faults", PATIENCE_S)
    assert fleet.faults() == {}


@pytest.mark.slow("a step is refused, and sent again after four seconds")
def test_a_function_that_is_missing_is_awaited(fleet: Fleet) -> None:
    (fleet.folder / "apart.py").write_text("")
    fleet.end_all("tools")
    third = fleet.start("third", "tools")
    run = fleet.chain("later")
    until(lambda: fleet.refusals(run), "the refusal", PATIENCE_S)
    assert "module 'apart' has no function 'later'" in fleet.refusals(run)[0]
    assert fleet.chain("note").result(PATIENCE_S).final_output == 2, "others go on"

    assert not third.exists()

    (fleet.folder / "apart.py").write_text(APART)

    assert run.result(PATIENCE_S).final_output == "here"
    until(third.exists, "the readiness of the worker whose file is corrected", PATIENCE_S)


ENDS = "import os\nos._exit(3)\n"
ENDED = "the process that imports it ended with status 3"


@pytest.mark.slow("a worker starts; a step is refused, and sent again after fifteen seconds")
def test_a_module_of_its_configuration_that_ends_its_process_ends_none_of_a_worker_s(fleet: Fleet) -> None:
    (fleet.folder / "apart.py").write_text(ENDS)
    fleet.end_all("tools")
    heartbeat = fleet.start("fourth", "tools")
    run = fleet.chain("later")
    until(lambda: fleet.refusals(run), "the refusal", PATIENCE_S)
    assert ENDED in fleet.refusals(run)[0]
    assert not heartbeat.exists()

    (fleet.folder / "apart.py").write_text(APART)

    assert run.result(PATIENCE_S).final_output == "here"
    assert not event_of(run, "lost")
    until(heartbeat.exists, "the readiness of the worker whose file is corrected", PATIENCE_S)


@pytest.mark.slow("a worker starts, and a process of it ends")
def test_another_module_that_ends_its_process_ends_one_and_no_run(fleet: Fleet) -> None:
    (fleet.folder / "outside.py").write_text(ENDS)
    fleet.end_all("tools")
    fleet.start("fifth", "tools")
    run = fleet.chain("outside")
    until(lambda: fleet.refusals(run), "the refusal", PATIENCE_S)

    assert ENDED in fleet.refusals(run)[0]
    assert run.status() == "running"
    assert sum(event.type == "lost" for event in run.log(timeout_s=0.0)) == 1
    assert fleet.chain("note").result(PATIENCE_S).final_output == 2, "others go on"
    run.cancel()


@pytest.mark.slow("a worker starts")
def test_an_import_error_of_a_function_that_runs_is_its_failure(fleet: Fleet) -> None:
    (fleet.folder / "ours.py").write_text("def note(n: int) -> int:\n    import not_there\n    return n\n")
    fleet.end_all("tools")
    fleet.start("other", "tools")

    result = fleet.chain("note").result(PATIENCE_S)

    assert result.error is not None
    assert "ours:note raised ModuleNotFoundError: No module named 'not_there'" in result.error.message


def event_of(run: Run, kind: str) -> bool:
    """Whether a run has an event of a type."""
    return any(event.type == kind for event in run.log(timeout_s=0.0))
