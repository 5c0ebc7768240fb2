"""The embedded stack with a real server and stand-ins for the workers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner

from cantata.errors import ConfigError, UnavailableError
from cantata.operation.embedded import Home, Stack, StackProcess, attach, down, stack_plan, status
from cantata.operation.embedded import stack as embedded_stack
from cantata.operation.embedded.process_identity import ProcessIdentity, identify, wait_ended
from cantata.operation.embedded.stack_record import StackRecord, read_record
from cantata.operation.embedded.valkey import find_server, is_responding, server_command
from cantata.surfaces.cli.main import submit
from tests.waiting import freeze

READY = "import os, signal, sys\nos.write(int(os.environ['CANTATA_READY_FD']), b'ready\\n')\n"
PAUSE = "signal.pause()\n"


def stand_in(code: str = READY + PAUSE) -> Callable[[str, tuple[str, ...], int], list[str]]:
    """Workers that run this code."""
    return lambda name, _queues, _concurrency: [sys.executable, "-S", "-c", code, name]


WORKER = stand_in()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A folder in which no stack is left over."""
    home = Home(tmp_path / "home")
    yield home
    down(home, 0.0)


def eventually(is_so: Callable[[], object], within_s: float = 40.0) -> None:
    give_up = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.005)


def identities(stack: Stack) -> list[ProcessIdentity]:
    return [each.identity for each in stack.processes()]


def find(stack: Stack, name: str) -> StackProcess:
    return next(each for each in stack.processes() if each.name == name)


def is_back(stack: Stack, before: StackProcess) -> bool:
    now = find(stack, before.name) if before.name in [each.name for each in stack.processes()] else before
    return now.pid != before.pid and now.alive


def connect(stack: Stack) -> redis.Redis:
    return redis.Redis(unix_socket_path=urlsplit(stack.url).path, decode_responses=True)


def put(stack: Stack, key: str, value: str) -> None:
    with connect(stack) as client:
        client.set(key, value)


def get(stack: Stack, key: str) -> object:
    with connect(stack) as client:
        return client.get(key)


def events(home: Home) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home.logs / "stack.log").read_text().splitlines()]


def start_owner(home: Home, then: str) -> subprocess.Popen[str]:
    """A command of its own that starts a stack, says so, and goes on as told."""
    code = f"""
import os, signal, sys
from cantata.operation.embedded import Stack
worker = [sys.executable, "-S", "-c", {READY + PAUSE!r}]
stack = Stack.start({str(home.path)!r}, command=lambda name, queues, concurrency: [*worker, name], wait=False)
stack.wait_ready()
print("started", flush=True)
{then}
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


# For the length of one command


def test_a_stack_runs_as_long_as_its_block(home: Home) -> None:
    with Stack.start(home, tools=2, command=WORKER) as stack:
        put(stack, "a", "1")
        everyone = stack.processes()

        assert get(stack, "a") == "1"
        assert [(each.name, each.queues) for each in everyone] == [
            ("supervisor", ()),
            ("valkey", ()),
            ("coordinator", ("coordinator",)),
            ("agents", ("agents",)),
            ("tools", ("tools",)),
        ]
        assert all(each.alive for each in everyone)
        assert status(home).running
        socket = Path(urlsplit(stack.url).path)
        assert socket.stat().st_mode & 0o777 == 0o700

    assert not any(each.alive for each in everyone)
    assert not home.record.exists()
    assert not socket.parent.exists()
    assert not status(home).running


def test_the_address_is_known_before_the_stack_is_ready(home: Home) -> None:
    stack = Stack.start(home, command=WORKER, wait=False)
    url = stack.url

    stack.wait_ready()

    assert get(stack, "a") is None
    assert stack.url == url
    stack.stop()


def test_workers_are_told_where_they_are(home: Home) -> None:
    names = ["REDIS_URL", "CANTATA_HOME", "CANTATA_STACK_PID", "CANTATA_CONFIG"]
    code = f"{READY}print(*(os.environ[name] for name in {names}), sep='\\n', flush=True)\n{PAUSE}"

    with Stack.start(home, config="here.yaml", command=stand_in(code)) as stack:
        log = home.logs / "tools.log"
        eventually(lambda: log.read_text().count("\n") == 4)

        supervisor = find(stack, "supervisor")
        assert log.read_text().split() == [
            stack.url,
            str(home.path),
            str(supervisor.pid),
            str(Path("here.yaml").absolute()),
        ]


def test_data_outlive_the_stack(home: Home) -> None:
    with Stack.start(home, command=WORKER) as stack:
        put(stack, "a", "1")

    with Stack.start(home, command=WORKER) as stack:
        assert get(stack, "a") == "1"


def test_a_deep_folder_will_do(tmp_path: Path) -> None:
    deep = Home(tmp_path.joinpath(*["deep" * 15] * 3))

    with Stack.start(deep, command=WORKER) as stack:
        assert len(str(deep.path)) > 108
        assert get(stack, "a") is None


@pytest.mark.parametrize(
    "then",
    [
        "sys.exit()",
        *(
            pytest.param(each, marks=pytest.mark.thorough("another end"))
            for each in ("signal.pause()", "raise RuntimeError")
        ),
    ],
)
def test_nothing_is_left_of_a_command_that_ends_without_a_word(home: Home, then: str) -> None:
    owner = start_owner(home, f"sys.stderr.close(); {then}")
    assert owner.stdout
    assert owner.stdout.readline() == "started\n"
    record = read_record(home)
    if record is not None:  # else it is gone already
        everyone = [record.supervisor.identity, *(each.identity for each in record.processes)]

        owner.kill()

        assert wait_ended(everyone, 20.0)
    owner.stdout.close()
    owner.wait()
    eventually(lambda: not home.record.exists())


def test_a_worker_that_does_not_listen_is_killed_after_the_grace(home: Home) -> None:
    deaf = stand_in(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}while True: {PAUSE}")
    stack = Stack.start(home, command=deaf)
    everyone = identities(stack)
    began = time.monotonic()

    stack.stop(grace_s=0.2)

    assert 0.2 <= time.monotonic() - began < 20.0
    assert not any(each.is_alive() for each in everyone)


def test_a_worker_gets_the_grace_it_needs(home: Home) -> None:
    finish = "time.sleep(0.3), print('done', flush=True), sys.exit()"
    code = f"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: ({finish}))\n{READY}{PAUSE}"
    stack = Stack.start(home, command=stand_in(code))

    stack.stop(grace_s=10.0)

    assert (home.logs / "agents.log").read_text() == "done\n"


def test_what_a_dead_worker_started_ends_with_it(home: Home) -> None:
    code = f"import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\n{READY}{PAUSE}"
    with Stack.start(home, command=stand_in(code)) as stack:
        before = find(stack, "tools")
        started = identify(int((home.logs / "tools.log").read_text()))
        assert started is not None

        os.kill(before.pid, signal.SIGKILL)

        assert wait_ended([started], 40.0)


# Time that may be skipped


def test_only_workers_of_a_stack_with_virtual_time_are_told_of_it(home: Home) -> None:
    code = f"{READY}print(os.environ.get('CANTATA_VIRTUAL_TIME'), flush=True)\n{PAUSE}"
    for virtual_time, told in ((True, "1\n"), (False, "1\nNone\n")):
        with Stack.start(home, agents=0, command=stand_in(code), virtual_time=virtual_time) as stack:
            eventually(lambda told=told: (stack.home.logs / "tools.log").read_text() == told)  # type: ignore[misc]


def test_the_time_of_a_stack_that_was_not_started_for_it_cannot_be_skipped(home: Home) -> None:
    with Stack.start(home, command=WORKER) as stack:
        with pytest.raises(
            ConfigError, match=r"time can be skipped in a stack for tests only: start it with virtual_time=True"
        ):
            stack.skip(60)

        stack.keep()
        found = attach(home)
        assert found is not None
        with pytest.raises(ConfigError, match="for tests only"):
            found.skip(60)


def test_a_stack_with_virtual_time_is_not_kept(home: Home) -> None:
    with pytest.raises(ConfigError, match="cannot be kept: start it without keep, or without virtual_time"):
        Stack.start(home, keep=True, command=WORKER, virtual_time=True)
    assert not status(home).running

    with Stack.start(home, command=WORKER, virtual_time=True) as stack:
        with pytest.raises(ConfigError, match="cannot be kept"):
            stack.keep()
        assert attach(home) is None


# What goes wrong at the start


def test_two_stacks_in_one_folder_are_told(home: Home) -> None:
    with Stack.start(home, command=WORKER) as first:
        pid = find(first, "supervisor").pid

        with pytest.raises(
            UnavailableError, match=rf"another stack is running in .* process {pid}\): stop it with `submit down`"
        ):
            Stack.start(home, command=WORKER)

        second = Stack.start(home, command=WORKER, wait=False)
        second.stop()
        assert get(first, "a") is None  # the second took nothing down


def test_a_worker_that_dies_at_its_start_is_told(home: Home) -> None:
    with pytest.raises(
        UnavailableError,
        match=r"'coordinator' ended at its start with status 3: no such configuration; its log is .*coordinator\.log",
    ):
        Stack.start(
            home,
            command=stand_in(
                "import sys\nif sys.argv[1] == 'coordinator': print('no such configuration'); sys.exit(3)\n"
                + READY
                + PAUSE
            ),
        )

    assert not home.record.exists()


def test_a_server_that_dies_at_its_start_is_told(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "valkey-server"
    server.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo v=9.1.2 && exit\necho 'Bad file format reading the append only file'\nexit 1\n"
    )
    server.chmod(0o700)
    monkeypatch.setenv("CANTATA_REDIS_SERVER", str(server))

    with pytest.raises(
        UnavailableError,
        match="'valkey' ended at its start with status 1: Bad file format reading the append only file; its log",
    ):
        Stack.start(home, command=WORKER)


def test_a_command_that_is_not_there_is_told(home: Home) -> None:
    with pytest.raises(UnavailableError, match="'coordinator' cannot be started with '/nowhere/python': No such file"):
        Stack.start(home, command=lambda *_: ["/nowhere/python"])


def test_a_stack_that_never_gets_ready_is_told_and_ended(home: Home) -> None:
    with pytest.raises(UnavailableError, match=r"was not ready after 0\.5 s; its logs are in"):
        Stack.start(home, command=stand_in("import signal\nsignal.pause()\n"), timeout_s=0.5)

    assert not home.record.exists()


# What dies comes back


def test_a_killed_server_comes_back_with_its_data_on_the_same_socket(home: Home) -> None:
    with Stack.start(home, command=WORKER) as stack:
        put(stack, "a", "1")
        before = find(stack, "valkey")

        os.kill(before.pid, signal.SIGKILL)

        eventually(lambda: is_back(stack, before))
        eventually(lambda: is_responding(urlsplit(stack.url).path))
        assert get(stack, "a") == "1"


def test_a_killed_worker_comes_back_and_the_log_tells(home: Home) -> None:
    with Stack.start(home, command=WORKER) as stack:
        before = find(stack, "tools")

        os.kill(before.pid, signal.SIGKILL)

        eventually(lambda: is_back(stack, before))
        told = [event for event in events(home) if event["event"] == "child_died"]
        assert [(event["name"], event["status"]) for event in told] == [("tools", -signal.SIGKILL)]


def test_a_worker_that_keeps_dying_is_started_ever_later(home: Home) -> None:
    once = f"import os, sys\nif os.path.exists('{home.path}/broken'): sys.exit(1)\n{READY}{PAUSE}"
    with Stack.start(home, command=stand_in(once)) as stack:
        (home.path / "broken").touch()

        os.kill(find(stack, "tools").pid, signal.SIGKILL)

        eventually(lambda: sum(event["event"] == "child_died" for event in events(home)) >= 3)
        delays = [event["restart_in_s"] for event in events(home) if event["event"] == "child_died"]
        assert delays[:3] == [0.1, 0.2, 0.4]
        (home.path / "broken").unlink()


# Kept running


def test_a_kept_stack_outlives_its_command_until_it_is_taken_down(home: Home) -> None:
    owner = start_owner(home, "stack.keep()")
    owner.communicate()
    assert owner.returncode == 0

    stack = attach(home)

    assert stack is not None
    put(stack, "a", "1")
    assert status(home).kept
    assert [each.pid for each in status(home).processes] == [each.pid for each in stack.processes()]
    everyone = identities(stack)
    with stack:
        pass  # it is not ours to end
    assert all(each.is_alive() for each in everyone)

    assert down(home)

    assert not any(each.is_alive() for each in everyone)
    assert attach(home) is None
    assert not down(home)


def test_a_stack_of_another_command_is_not_attached_to(home: Home) -> None:
    with Stack.start(home, command=WORKER):
        assert attach(home) is None
        assert not status(home).kept


def test_a_kept_stack_can_be_found_at_once(home: Home) -> None:
    started = Stack.start(home, keep=True, command=WORKER)

    found = attach(home)

    assert found is not None
    assert found.url == started.url
    started.stop()
    assert attach(home) is None


def test_attaching_waits_for_a_server_that_is_just_starting_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_stack, "ANSWER_S", 40.0)
    stack = Stack.start(home, keep=True, command=WORKER)
    put(stack, "a", "1")
    os.kill(find(stack, "valkey").pid, signal.SIGKILL)

    found = attach(home)

    assert found is not None
    assert get(found, "a") == "1"


@pytest.mark.slow("a server hangs for some seconds")
def test_a_kept_stack_whose_server_hangs_is_told_of_and_no_other_is_started(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("CANTATA_HOME", str(home.path))
    monkeypatch.setattr("cantata.operation.embedded.stack.ANSWER_S", 0.1)
    with Stack.start(home, keep=True, command=WORKER) as stack:
        server = find(stack, "valkey").pid
        freeze(server)
        try:
            said = CliRunner().invoke(submit, ["status"])
            listed = CliRunner().invoke(submit, ["runs", "list"])
        finally:
            os.kill(server, signal.SIGCONT)
        stack.stop()

    assert (said.exit_code, listed.exit_code) == (3, 3)
    assert re.search(r"^failing +Redis +.*gave no answer within \d s", said.stdout, re.MULTILINE), said.output
    assert f"the Redis of the stack in {home.path} does not answer; see `submit status`" in listed.stderr


# Ports


def test_the_gateway_port_is_bound_first_and_kept_for_the_folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        usual = taken.getsockname()[1]
        monkeypatch.setitem(stack_plan.DEFAULT_PORTS, "gateway", usual)
        stack = Stack.start(home, agents=0, tools=0, gateway=True, command=WORKER, wait=False)
        eventually(lambda: stack.status().gateway_url)
        port = urlsplit(stack.status().gateway_url or "").port
        with socket.create_connection(("127.0.0.1", port)):  # before the gateway runs: nobody else can have it
            stack.wait_ready()
        before = find(stack, "gateway")
        os.kill(before.pid, signal.SIGKILL)
        eventually(lambda: is_back(stack, before))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=40) as answer:  # waits until it is back
            assert answer.status == 200
        stack.stop()

    assert stack.moved == {"gateway": usual}
    with Stack.start(
        home, agents=0, tools=0, gateway=True, command=WORKER
    ) as again:  # though the usual one is free now
        assert urlsplit(again.status().gateway_url or "").port == port
        assert again.moved == {"gateway": usual}


# What others left behind


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the workers notice, and the server waits for the next start"
)
def test_children_of_a_killed_supervisor_die_and_the_next_start_is_clean(home: Home) -> None:
    stack = Stack.start(home, keep=True, command=WORKER)
    put(stack, "a", "1")
    everyone = identities(stack)

    os.kill(find(stack, "supervisor").pid, signal.SIGKILL)

    assert wait_ended(everyone, 20.0)
    assert not status(home).running
    assert attach(home) is None
    assert not home.record.exists()
    with Stack.start(home, command=WORKER) as stack:
        assert get(stack, "a") == "1"


def test_a_server_that_was_left_over_is_ended_by_the_next_start(home: Home) -> None:
    home.prepare()
    socket = home.make_socket()
    left = subprocess.Popen(
        server_command(find_server(), socket, home.data), stdout=subprocess.DEVNULL, start_new_session=True
    )
    eventually(lambda: is_responding(socket))
    server = identify(left.pid)
    assert server is not None
    gone = StackProcess("supervisor", (), ProcessIdentity(2**22 + 1, "1"), 0.0)
    StackRecord(gone, str(socket), True, None, (StackProcess("valkey", (), server, 0.0),)).write(home)

    with Stack.start(home, command=WORKER) as stack:
        assert left.wait(40) == 0
        assert get(stack, "a") is None


def test_a_foreign_process_with_a_recorded_pid_is_left_alone(home: Home) -> None:
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    known = identify(foreign.pid)
    assert known is not None
    home.prepare()
    former = replace(known, started="1")
    stale = StackRecord(
        StackProcess("supervisor", (), former, 0.0),
        "/nowhere",
        True,
        None,
        (StackProcess("valkey", (), former, 0.0), StackProcess("tools", (), former, 0.0)),
    )

    stale.write(home)
    assert not status(home).running
    assert not down(home)
    assert not home.record.exists()

    stale.write(home)
    with Stack.start(home, command=WORKER):
        pass

    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()
