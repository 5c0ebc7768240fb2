"""Processes that are forks of one which has imported what they need: what they keep of it, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.errors import UnavailableError
from cantata.flows.definitions import Agent, Definitions, Tool
from cantata.operation.embedded import Stack
from cantata.testing import ScriptedModels
from tests import warm
from tests.waiting import until

OF_MODELS = "fastuuid"  # a part of LiteLLM that is no Python

FORK = """
import json, os, signal, sys, threading
from cantata.operation.embedded.supervision.prefork import can_fork, fork, start

kept, left = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
written, writes = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: None)
os.set_blocking(writes, False)
signal.set_wakeup_fd(writes)


def be():
    {be}


child = fork(be, ["what", "it is"], environment={{"ONLY": "this"}}, streams=(kept, 1, 2), passed=[kept])
print(json.dumps({{"status": child.wait(20), "poll": child.poll(), "own": os.getsid(0), "pid": child.pid}}))
"""
TELLS = """
    import atexit, time
    atexit.register(lambda: print("at exit", flush=True))
    fds = sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1]
    told = {{"env": dict(os.environ), "fds": fds, "kept": kept, "left": left, "sid": os.getsid(0), "pid": os.getpid(),
        "title": open("/proc/self/cmdline").read().strip(chr(0)), "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL}}
    print(json.dumps(told), flush=True)
    threading.Thread(target=lambda: (time.sleep(0.1), print("a thread ended", flush=True))).start()
"""


def ran(be: str) -> tuple[list[str], str, dict[str, Any]]:
    """What a fork printed on both of its streams, and what its parent says of it."""
    code = FORK.replace("{be}", be).replace("{{", "{").replace("}}", "}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *lines, last = done.stdout.splitlines()
    return lines, done.stderr, json.loads(last)


def test_a_fork_has_its_own_session_signals_environment_and_files() -> None:
    lines, _, parent = ran(TELLS.strip())
    told = json.loads(lines[0])

    assert (told["sid"], told["pid"]) == (parent["pid"], parent["pid"])
    assert told["sid"] != parent["own"]
    assert told["env"] == {"ONLY": "this"}
    assert told["fds"] == [0, 1, 2, told["kept"]]
    assert told["left"] not in told["fds"]
    assert told["title"] == "what it is"
    assert told["term"]


def test_it_ends_as_an_interpreter_ends() -> None:
    lines, _, parent = ran(TELLS.strip())

    assert lines[1:] == ["a thread ended", "at exit"]
    assert (parent["status"], parent["poll"]) == (0, 0)


@pytest.mark.parametrize(
    ("be", "status", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('it is wrong')", 1, "it is wrong"),
        ("raise ValueError('it broke')", 1, "ValueError: it broke"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("return 5", 0, ""),
    ],
)
def test_its_status_is_that_of_a_program(be: str, status: int, said: str) -> None:
    _, told, parent = ran(be)

    assert parent["status"] == status
    assert said in told


def test_with_a_second_thread_a_process_starts_from_nothing() -> None:
    code = (
        "import sys, threading, time; from cantata.operation.embedded.supervision.prefork import can_fork, start\n"
        "gate = threading.Event(); thread = threading.Thread(target=gate.wait); thread.start()\n"
        "child = start([sys.executable, '-P', '-m', 'this'], environment={}, streams=(0, 1, 2))\n"
        "print(can_fork(), type(child).__name__, child.wait(20)); gate.set(); thread.join()\n"
        "while not can_fork(): time.sleep(0.001)\n"  # the kernel's thread ends a moment after Python's
        "print(can_fork())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert "Zen of Python" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["False Popen 0", "True"]


def test_a_stack_s_processes_say_what_they_are_and_are_started_again(tmp_path: Path) -> None:
    with Stack.start(tmp_path / "home", agents=2, tools=1) as stack, Client(stack.url):
        old = {process.name: process for process in stack.processes()}
        titles = {name: Path(f"/proc/{process.pid}/cmdline").read_text() for name, process in old.items()}
        killed = old["agents-2"]
        killed.identity.signal(signal.SIGKILL)
        until(
            lambda: (
                {each.name: each.pid for each in stack.processes() if each.alive}.get("agents-2", old["agents-2"].pid)
                != old["agents-2"].pid
            ),
            "another",
        )

    assert "supervise" in titles["supervisor"]
    assert all(name in titles[name] for name in ("coordinator", "agents", "agents-2", "tools"))


def living(stack: Stack) -> dict[str, int]:
    return {process.name: process.pid for process in stack.processes() if process.alive}


@pytest.mark.slow("nothing is imported before")
@pytest.mark.thorough("Celery and LiteLLM are imported, as they are for a user")
def test_a_stack_that_starts_from_nothing_loads_what_its_agents_need_and_forks_those_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(warm.PLACE)
    definitions = Definitions(agents={"ann": Agent(model="openai/gpt-4o-mini", retries=0)})
    with ScriptedModels() as models, ExitStack() as opened:
        monkeypatch.setenv("OPENAI_API_BASE", models.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        stack = Stack.start(tmp_path / "home", tools=1, keep=True)
        opened.callback(stack.stop)
        client = opened.enter_context(Client(stack.url, config=definitions))
        cold = client.submit_turn("from nothing", agent="ann").result(60)
        supervisor = living(stack)["supervisor"]
        until(
            lambda: OF_MODELS in mapped(supervisor) and stat(supervisor)[17] == "1",
            "LiteLLM, and the end of the thread that imports it",
        )
        killed = living(stack)["agents"]
        os.kill(killed, signal.SIGKILL)
        until(lambda: living(stack).get("agents", killed) != killed, "another")
        forked = client.submit_turn("from a fork", agent="ann").result(60)
        cpu_s = sum(map(int, stat(living(stack)["agents"])[11:13])) / os.sysconf("SC_CLK_TCK")

    assert (cold.status, forked.status) == ("succeeded", "succeeded")
    assert cpu_s < 2.0  # an import of LiteLLM alone takes more


@pytest.mark.slow("it starts two agents workers, which call a model ten times each")
def test_agents_processes_share_most_of_their_memory_after_calls_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Definitions(agents={"ann": Agent(model="openai/gpt-4o-mini", stream=False)})
    with ScriptedModels() as models:
        monkeypatch.setenv("OPENAI_API_BASE", models.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        with Client.embedded(tmp_path / "home", config=definitions, agents=2, tools=1) as client:
            for run in [client.submit_turn(f"call {number}", agent="ann") for number in range(20)]:
                run.result(60)
            own_mb = [own_memory_mb(living(client.stack)[name]) for name in ("agents", "agents-2")]

    assert (
        max(own_mb) < 65
    )  # 50; it was 80 when each imported what a first call needs, and touched the names of all modules


def own_memory_mb(pid: int) -> float:
    """The memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def mapped(pid: int) -> str:
    """The files that are in a process's memory."""
    return Path(f"/proc/{pid}/maps").read_text()


def stat(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def test_a_signal_that_comes_at_once_ends_a_fork_and_is_not_taken_by_what_its_parent_does() -> None:
    code = (
        "import os, signal, time; from cantata.operation.embedded.supervision.prefork import fork\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "ended = 0\n"
        "for _ in range(20):\n"
        "    child = fork(lambda: time.sleep(20), ['x'], environment={}, streams=(0, 1, 2))\n"
        "    os.kill(child.pid, signal.SIGTERM)\n"
        "    ended += child.wait(10) == -signal.SIGTERM\n"
        "print(ended)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "20\n"


def test_libraries_that_cannot_be_imported_are_told_by_the_workers_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['kombu'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(UnavailableError, match=r"ended at its start with status 1: .*kombu"):
        Stack.start(tmp_path / "home", agents=1, tools=1)


def test_a_module_of_the_user_s_has_its_name_though_a_library_of_ours_brought_one(tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("def find() -> str:\n    return 'mine'\n")
    definitions = Definitions(folder=str(tmp_path), tools={"find": Tool(function="openai:find")})
    with Client.embedded(tmp_path / "home", config=definitions, agents=2, tools=1) as client:
        killed = next(process for process in client.stack.processes() if process.name == "tools")
        killed.identity.signal(signal.SIGKILL)
        until(lambda: living(client.stack).get("tools", killed.pid) != killed.pid, "another, which has LiteLLM")

        answer = client.submit_chain(
            {"entry_node": "a", "nodes": [{"node_id": "a", "kind": "tool", "name": "find"}]}
        ).result(60)

    assert answer.final_output == "mine"
