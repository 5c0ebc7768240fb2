"""The command line as a user meets it: real processes, a real stack, tools only, no model."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from cantata.engine.fleet import registry
from cantata.engine.fleet.registry import Worker
from cantata.flows.events import RunEvent
from cantata.flows.wire import ChainEvent, ChainResponse
from cantata.ledger.redis.connection import connect
from cantata.operation.embedded import Home, down, status

pytestmark = pytest.mark.timeout(180)  # a stack starts in 4 s, on a busy machine in 20

SUBMIT = [sys.executable, "-m", "cantata.surfaces.cli"]
PATIENCE_S = 60.0
FOREIGN = (
    "REDIS_URL",
    "NO_COLOR",
    "PYTHONDONTWRITEBYTECODE",
)  # without bytecode each command compiles all that it imports

CONFIG = """\
tools:
  numbers: {function: "acceptance_tools:numbers"}
  double: {function: "acceptance_tools:double"}
  gate: {function: "acceptance_tools:gate"}
  boom: {function: "acceptance_tools:boom"}
chains:
  doubles: &doubles
    entry_node: list
    nodes:
      - {node_id: list, kind: tool, name: numbers, input_map: {count: count}, next_node: each}
      - {node_id: each, kind: map, items_path: list, map_node: one, next_node: last}
      - {node_id: one, kind: tool, name: double, input_map: {n: _item}}
      - {node_id: last, kind: tool, name: double, input_map: {n: length(each)}}
  ask:
    entry_node: ask
    nodes:
      - {node_id: ask, kind: wait, next_node: answer}
      - {node_id: answer, kind: tool, name: double, input_map: {n: ask}}
  gated:
    entry_node: gate
    nodes:
      - {node_id: gate, kind: tool, name: gate, input_map: {name: input.name}}
  failing:
    entry_node: first
    nodes:
      - {node_id: first, kind: tool, name: double, input: {n: 1}, next_node: boom}
      - {node_id: boom, kind: tool, name: boom}
"""
TOOLS = '''
"""Tools of the acceptance tests."""

import time
from pathlib import Path

def numbers(count: int) -> list[int]:
    return list(range(count))

def double(n: int) -> int:
    return 2 * n

def gate(name: str) -> str:
    while not Path(__file__).with_name(name).exists():
        time.sleep(0.01)
    return name

def boom() -> None:
    raise ValueError("\\x1b[31mred\\x1b[0m [bold]bang[/bold]")
'''


class Folder:
    """A folder with a configuration, in which commands are run."""

    def __init__(self, path: Path, bytecode: Path) -> None:
        self.path = path
        self.bytecode = bytecode
        (path / "configs").mkdir(parents=True)
        (path / "configs" / "default.yaml").write_text(CONFIG)
        (path / "configs" / "acceptance_tools.py").write_text(TOOLS)

    def submit(self, *words: str, given: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        env = self.environment(**env)
        return subprocess.run(
            [*SUBMIT, *words],
            cwd=self.path,
            env=env,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*SUBMIT, *words],
            cwd=self.path,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self, **env: str) -> dict[str, str]:
        ours = {
            name: value for name, value in os.environ.items() if name not in FOREIGN and not name.startswith("CANTATA_")
        }
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**ours, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": str(self.bytecode), **env}

    def open(self, gate: str) -> None:
        (self.path / "configs" / gate).touch()

    def json(self, *words: str, status: int = 0) -> dict[str, object]:
        done = self.submit(*words, "--json")
        assert done.returncode == status, done.stderr or done.stdout
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def detach(self, *words: str) -> str:
        return str(self.json("chain", *words, "--detach")["run_id"])

    def response(self, run_id: str, *, status: int = 0) -> ChainResponse:
        return ChainResponse.model_validate(self.json("runs", "result", run_id, status=status))


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of these tests keep what Python compiled."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, bytecode: Path) -> Iterator[Folder]:
    """A folder whose stack `submit up` keeps."""
    folder = Folder(tmp_path_factory.mktemp("kept") / "here", bytecode)
    done = folder.submit("up", "--no-flower", "--tools", "2")
    assert done.returncode == 0, done.stderr
    yield folder
    assert folder.submit("down").returncode == 0


@pytest.fixture
def alone(tmp_path: Path, bytecode: Path) -> Iterator[Folder]:
    """A folder without a stack."""
    folder = Folder(tmp_path / "here", bytecode)
    yield folder
    down(Home(folder.path / ".cantata"), 0.0)


def eventually(is_so: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.05)


def read_until(stream: Iterator[str], wanted: str) -> list[str]:
    lines = []
    for line in stream:
        lines.append(line)
        if wanted in line:
            return lines
    raise AssertionError(f"{wanted!r} never came: {lines}")


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stderr.splitlines()


# Without a service


def test_help_loads_nothing_that_takes_time() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "cantata.surfaces.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in loaded
    assert not loaded & {
        "celery",
        "kombu",
        "redis",
        "pydantic",
        "rich",
        "litellm",
        "yaml",
        "structlog",
        "cantata_workers",
    }


@pytest.mark.slow("a stack of its own starts and ends")
def test_one_command_is_enough_and_leaves_nothing_running_but_the_run_kept(alone: Folder) -> None:
    done = alone.submit("chain", "doubles", "--input", '{"count": 3}')

    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    assert len([line for line in lines(done) if "starting one in" in line]) == 1
    assert alone.submit("status").returncode == 3
    assert alone.submit("runs", "list").stdout.count("doubles") == 1


def test_ctrl_c_leaves_the_run_to_itself_on_a_stack_that_stays(alone: Folder) -> None:
    command = alone.start("chain", "gated", "--input", '{"name": "late"}')
    assert command.stderr is not None
    printed = read_until(command.stderr, "started gate")

    command.send_signal(signal.SIGINT)
    _, rest = command.communicate(timeout=PATIENCE_S)

    assert command.returncode == 130
    run_id = re.findall(r"accepted (\S+)", "".join(printed))[0]
    assert f"submit runs follow {run_id}" in rest
    assert "submit down" in rest
    alone.open("late")
    assert alone.response(run_id).final_output == "late"
    assert alone.json("status")["kept"] is True


def test_detached_without_a_service_the_stack_stays(alone: Folder) -> None:
    run_id = alone.detach("doubles", "--input", '{"count": 1}')

    assert alone.response(run_id).final_output == 2


@pytest.mark.slow("a stack of its own starts and ends")
def test_two_stacks_in_one_folder_are_refused_with_the_reason(alone: Folder) -> None:
    first = alone.start("chain", "gated", "--input", '{"name": "two"}')
    assert first.stderr is not None
    read_until(first.stderr, "started gate")

    second = alone.submit("chain", "doubles", "--input", '{"count": 1}')
    alone.open("two")
    first.communicate(timeout=PATIENCE_S)

    assert second.returncode == 3
    assert "another stack is running" in second.stderr
    assert first.returncode == 0


def test_a_bad_request_fails_before_a_stack_is_waited_for(alone: Folder) -> None:
    done = alone.submit("chain", "duobles")

    assert done.returncode == 2
    assert lines(done) == [
        "submit: duobles: there is no such file, and no chain of that name in the configuration; did you mean 'doubles'?"
    ]


@pytest.mark.parametrize("words", [["hello"], ["status"]])
def test_a_redis_that_is_gone_has_status_3_and_its_password_is_not_shown(alone: Folder, words: list[str]) -> None:
    (alone.path / "configs" / "default.yaml").write_text(CONFIG + "agents: {a: {}}\n")

    done = alone.submit(*words, REDIS_URL="redis://:geheim@localhost:1/0")

    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
    assert "geheim" not in done.stderr
    assert "Traceback" not in done.stderr


# Results


def test_a_chain_s_json_is_one_response(kept: Folder) -> None:
    done = kept.submit("chain", "doubles", "--input", '{"count": 3}', "--json")

    response = ChainResponse.model_validate_json(done.stdout)
    assert done.returncode == 0
    assert (response.success, response.final_output, response.outputs["each"], response.items_run) == (
        True,
        6,
        [0, 2, 4],
        3,
    )
    assert done.stderr == ""


def test_events_come_one_a_line_before_the_response(kept: Folder) -> None:
    done = kept.submit("chain", "doubles", "--input", '{"count": 2}', "--events")

    *events, response = done.stdout.splitlines()
    seen = [ChainEvent.model_validate_json(line) for line in events]
    assert ChainResponse.model_validate_json(response).success
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    assert [event.phase for event in seen if event.node_id == "list"] == ["start", "done"]
    assert {event.index for event in seen if event.node_id == "one"} == {0, 1}


def test_a_request_that_wants_no_events_gets_none(kept: Folder) -> None:
    nodes = [{"node_id": "a", "kind": "tool", "name": "double", "input": {"n": 2}}]
    request = json.dumps(
        {"type": "chain/req", "nodes": nodes, "entry_node": "a", "streaming": False, "correlation_id": "c", "id": "m"}
    )

    done = kept.submit("chain", "-", "--events", given=request)

    (response,) = done.stdout.splitlines()
    found = ChainResponse.model_validate_json(response)
    assert (found.correlation_id, found.req_id) == ("c", "m")


def test_input_may_come_from_a_file(kept: Folder) -> None:
    (kept.path / "given.json").write_text('{"count": 4}')

    assert kept.submit("chain", "doubles", "--input", "@given.json").stdout == "8\n"


def test_a_run_that_fails_has_status_1_keeps_outputs_and_cannot_paint_the_terminal(kept: Folder) -> None:
    done = kept.submit("chain", "failing")
    as_json = kept.submit("chain", "failing", "--json")

    response = ChainResponse.model_validate_json(as_json.stdout)
    assert (done.returncode, as_json.returncode) == (1, 1)
    assert (response.success, response.failed, response.outputs["first"]) == (False, ["boom"], 2)
    assert response.error is not None
    assert response.error.code == "chain_node_error"
    assert "red [bold]bang[/bold]" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_run_past_its_time_has_status_1(kept: Folder) -> None:
    done = kept.submit("chain", "gated", "--input", '{"name": "never"}', "--timeout", "0.5", "--json")

    response = ChainResponse.model_validate_json(done.stdout)
    assert done.returncode == 1
    assert response.status == "timed_out"


def test_a_turn_that_nobody_can_answer_is_refused(kept: Folder) -> None:
    done = kept.submit("hello")

    assert done.returncode == 2
    assert "no agent is configured to answer" in done.stderr


# Runs


def test_a_run_is_followed_from_any_offset_without_gap_or_repeat(kept: Folder) -> None:
    run_id = kept.detach("gated", "--input", '{"name": "follow"}')
    early = kept.start("runs", "follow", run_id, "--json")
    assert early.stdout is not None
    first = [RunEvent.model_validate_json(line) for line in read_until(early.stdout, '"gate"')]
    early.kill()

    kept.open("follow")
    done = kept.submit("runs", "follow", run_id, "--from", str(first[-1].seq), "--json")
    early.communicate()

    rest = [RunEvent.model_validate_json(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [event.seq for event in (*first, *rest)] == list(range(1, len(first) + len(rest) + 1))
    assert rest[-1].type == "closed"


def test_interrupting_a_follower_leaves_the_run_alone(kept: Folder) -> None:
    run_id = kept.detach("gated", "--input", '{"name": "watch"}')
    follower = kept.start("runs", "follow", run_id)
    assert follower.stderr is not None
    read_until(follower.stderr, "started gate")

    follower.send_signal(signal.SIGINT)
    _, rest = follower.communicate(timeout=PATIENCE_S)

    assert follower.returncode == 130
    assert f"submit runs follow {run_id}" in rest
    kept.open("watch")
    assert kept.response(run_id).success


def test_a_result_that_is_not_there_in_time_is_what_there_is_so_far(kept: Folder) -> None:
    run_id = kept.detach("gated", "--input", '{"name": "so-far"}')

    done = kept.submit("runs", "result", run_id, "--timeout", "0", "--json")
    kept.open("so-far")

    assert done.returncode == 1
    assert ChainResponse.model_validate_json(done.stdout).status in ("accepted", "running")
    assert "it goes on" in done.stderr
    assert kept.response(run_id).success


def test_a_cancelled_run_is_over_with_status_1(kept: Folder) -> None:
    run_id = kept.detach("gated", "--input", '{"name": "cancelled"}')

    assert kept.json("runs", "cancel", run_id) == {"run_id": run_id, "status": "cancelled"}
    assert kept.response(run_id, status=1).status == "cancelled"
    assert kept.submit("runs", "cancel", run_id).returncode == 0


def test_a_waiting_step_takes_its_signal(kept: Folder) -> None:
    run_id = kept.detach("ask")

    assert kept.json("runs", "signal", run_id, "ask", "21")["signal"] in ("taken", "kept")
    assert kept.response(run_id).final_output == 42
    assert kept.json("runs", "signal", run_id, "ask", "21", status=1)["signal"] == "closed"


def test_a_run_is_shown_with_its_steps(kept: Folder) -> None:
    run_id = kept.detach("doubles", "--input", '{"count": 3}')
    kept.response(run_id)

    shown = kept.submit("runs", "show", run_id).stdout
    steps = kept.json("runs", "show", run_id)["steps"]

    assert "✓ last" in shown
    assert "3/3" in shown
    assert isinstance(steps, list)
    assert {"@start", "list", "each/0", "each/1", "each/2", "last"} <= {step["step"] for step in steps}


def test_a_run_has_the_labels_it_was_given(kept: Folder) -> None:
    run_id = kept.detach("doubles", "--input", '{"count": 1}', "--label", "tenant=acme", "--label", "why=a=b")
    kept.response(run_id)

    assert kept.json("runs", "show", run_id)["labels"] == {"tenant": "acme", "why": "a=b"}


def test_the_newest_runs_are_listed_first(kept: Folder) -> None:
    older = kept.detach("doubles", "--input", '{"count": 1}')
    newer = kept.detach("doubles", "--input", '{"count": 1}')

    done = kept.submit("runs", "list", "--limit", "2", "--json")

    assert [each["run_id"] for each in json.loads(done.stdout)] == [newer, older]


def test_runs_are_listed_by_status_kind_text_and_place(kept: Folder) -> None:
    older = kept.detach("doubles", "--input", '{"count": 1}')
    newer = kept.detach("doubles", "--input", '{"count": 1}')
    kept.submit("runs", "result", newer)

    def listed(*words: str) -> list[str]:
        return [each["run_id"] for each in json.loads(kept.submit("runs", "list", *words, "--json").stdout)]

    assert listed("--before", newer, "--limit", "1") == [older]
    assert listed("--search", newer[2:], "--kind", "chain", "--status", "succeeded", "--status", "running") == [newer]
    assert listed("--search", newer, "--kind", "turn") == listed("--search", newer, "--status", "failed") == []
    wrong = kept.submit("runs", "list", "--status", "done")
    assert (wrong.returncode, "no run is 'done'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("words", [["show"], ["signal", "s", "1"]])
def test_a_run_that_nobody_knows_has_status_2(kept: Folder, words: list[str]) -> None:
    done = kept.submit("runs", words[0], "nope", *words[1:])

    assert done.returncode == 2
    assert "run 'nope' is not known here" in done.stderr


# Terminals


def test_on_a_terminal_the_tree_is_shown_and_the_answer_at_the_end(kept: Folder) -> None:
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = subprocess.Popen(
        [*SUBMIT, "chain", "doubles", "--input", '{"count": 3}'],
        cwd=kept.path,
        env=kept.environment(TERM="xterm-256color"),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)

    read = b""
    while chunk := _read(screen):
        read += chunk
    shown = read.decode()
    os.close(screen)

    assert command.wait(PATIENCE_S) == 0
    plain = re.sub(r"\x1b\[[0-?]*[a-zA-Z]", "", shown)
    last = plain[plain.rindex("run ", 0, plain.rindex("✓ last")) :].split("\r\n")
    assert re.fullmatch(r"✓ each +\S+ m?s +\S+ +3/3", last[2].strip())
    assert last[4] == "6"
    assert "succeeded" in last[5]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux does this when the last process has closed the other side
        return b""


# Stacks and workers


def test_status_lists_every_process_and_worker(kept: Folder) -> None:
    eventually(lambda: len(_workers(kept)) == 3)
    found = kept.json("status")

    assert isinstance(found["processes"], list)
    assert [(each["name"], each["queues"], each["alive"]) for each in found["processes"]] == [
        ("supervisor", [], True),
        ("valkey", [], True),
        ("coordinator", ["coordinator"], True),
        ("agents", ["agents"], True),
        ("tools", ["tools"], True),
        ("gateway", [], True),
    ]
    assert all(each["pid"] > 0 for each in found["processes"])
    assert isinstance(found["workers"], list)
    assert {queue for each in found["workers"] for queue in each["queues"]} >= {"coordinator", "agents", "tools"}


def test_status_prints_a_line_for_each_check(kept: Folder) -> None:
    eventually(lambda: len(_workers(kept)) == 3)

    expected = {
        ("ok", name)
        for name in ("Redis", "disk", "memory", "workers", "code", "sweep", "queue", "runs", "gateway", "stack")
    }

    def checks() -> tuple[int, set[tuple[str, ...]]]:
        done = kept.submit("status")
        lines = [line for line in done.stdout.splitlines() if line.startswith(("ok", "degraded", "failing"))]
        return done.returncode, {tuple(line.split(maxsplit=2)[:2]) for line in lines}

    eventually(lambda: checks() == (0, expected))


def test_the_gateway_of_a_stack_answers_at_the_address_that_is_shown(kept: Folder) -> None:
    address = kept.json("status")["gateway_url"]

    with urlopen(f"{address}/ready") as answer:
        assert json.loads(answer.read()) == {"status": "ok"}
    assert f"gateway and run pages: {address}" in kept.submit("status").stdout


def test_up_refuses_a_module_that_cannot_be_imported_with_its_file_and_line_and_leaves_nothing_running(
    alone: Folder,
) -> None:
    with (alone.path / "configs" / "acceptance_tools.py").open("a") as file:
        file.write("\nimport not_there_at_all\n")
    line = (alone.path / "configs" / "acceptance_tools.py").read_text().count("\n")

    done = alone.submit("up", "--no-flower", "--no-gateway")

    assert done.returncode == 2
    assert f"No module named 'not_there_at_all' (acceptance_tools.py, line {line})" in done.stderr
    assert "default.yaml: line " in done.stderr
    assert "no stack is running" in alone.submit("down").stdout


def test_a_second_up_changes_nothing(kept: Folder) -> None:
    before = kept.json("status")

    done = kept.submit("up", "--no-flower", "--no-gateway", "--config", "other.yaml")
    same = kept.submit("up", "--no-flower", "--config", f"../{kept.path.name}/configs/default.yaml")

    assert (done.returncode, same.returncode) == (0, 0)
    assert "a stack is already running" in done.stdout
    assert "nothing was changed: --config other.yaml, --no-gateway had no effect" in done.stderr
    assert "had no effect" not in same.stderr
    assert kept.json("status")["processes"] == before["processes"]


def test_workers_can_be_added_and_stopped(kept: Folder) -> None:
    command = kept.start("worker", "coordinator", "gpu", "--name", "extra", "--concurrency", "1")
    eventually(lambda: {"extra-coordinator", "extra-gpu"} <= _workers(kept).keys())

    command.send_signal(signal.SIGTERM)

    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    eventually(lambda: not {"extra-coordinator", "extra-gpu"} & _workers(kept).keys())


@pytest.mark.thorough("LiteLLM is imported anew; workers are added and stopped in the tests above")
@pytest.mark.slow("a worker starts from nothing")
def test_a_worker_for_one_pool_is_the_command_s_own_process(kept: Folder) -> None:
    command = kept.start("worker", "gpu", "cpu", "--name", "own", "--concurrency", "1")

    eventually(lambda: "own" in _workers(kept))
    found = _workers(kept)["own"]
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=PATIENCE_S)

    assert (found.pid, found.queues) == (command.pid, ("gpu", "cpu"))


def test_a_fleet_without_workers_is_warned_of(kept: Folder, alone: Folder) -> None:
    url = str(kept.json("status")["url"])
    empty = url.replace("virtual_host=0", "virtual_host=1")

    done = alone.submit("chain", "doubles", "--input", '{"count": 1}', "--detach", REDIS_URL=empty)

    assert done.returncode == 0
    assert [line for line in lines(done) if "warning:" in line] == [
        "warning: no worker of Cantata is running, so runs wait: start one with `submit worker`"
    ]


def _workers(folder: Folder) -> dict[str, Worker]:
    with connect(str(status(Home(folder.path / ".cantata")).url)) as redis:
        return {worker.name.partition("@")[0]: worker for worker in registry.workers(redis)}
