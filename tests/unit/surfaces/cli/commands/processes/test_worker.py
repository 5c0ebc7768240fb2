"""Workers: their processes by queues."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cantata.errors import ConfigError
from cantata.operation.embedded.process_identity import identify
from cantata.surfaces.cli.commands.processes.worker import BEAT_S, WorkerProcess, supervise, unused_queues, workers_for
from cantata_workers.process.service import serve
from tests.waiting import until


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_queues_of_one_pool_share_a_process() -> None:
    (worker,) = workers_for(("tools", "gpu"), "mine", 3)

    assert (worker.name, worker.queues) == ("mine", ("tools", "gpu"))
    assert worker.command == [
        sys.executable,
        "-P",
        "-m",
        "cantata_workers",
        "tools",
        "gpu",
        "--name",
        "mine",
        "--concurrency",
        "3",
    ]


def test_a_queue_that_nothing_uses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools.yaml").write_text("version: 1\nagents: {it: {model: openai/x, queue: gpu}}\n")
    monkeypatch.setenv("CANTATA_CONFIG", str(tmp_path / "tools.yaml"))

    (warning,) = unused_queues(("tools", "gpu", "gppu"))

    assert warning.endswith("tools.yaml uses queue 'gppu'; did you mean 'gpu'?")


@pytest.mark.parametrize(
    ("queues", "name"),
    [(["tools"], "a|b"), (["tools"], "a~b"), (["tools"], "50%h"), (["a|b"], None), (["tools"], "x" * 101)],
)
def test_a_name_that_would_corrupt_leases_is_refused(queues: list[str], name: str | None) -> None:
    with pytest.raises(ConfigError, match="name has letters from A to Z, digits and"):
        workers_for(queues, name, None)
    with pytest.raises(ConfigError, match="name has letters from A to Z, digits and"):
        serve(tuple(queues), name=name or "worker", concurrency=None)


def test_a_worker_that_ends_on_its_own_stops_the_others_and_is_reported(
    capsys: pytest.CaptureFixture[str], kept_signals: None
) -> None:
    python = [sys.executable, "-S", "-c"]
    lasting = WorkerProcess("lasting", ("agents",), [*python, "import time; time.sleep(600)"])
    failing = WorkerProcess("failing", ("tools",), [*python, "raise SystemExit(7)"])

    assert supervise([lasting, failing]) == 1

    assert capsys.readouterr().err.splitlines() == [
        "submit: worker failing ended with 7; stopping the others",
        "submit: worker lasting ended with -15",
    ]


def test_processes_that_all_serve_are_told_once_and_one_alone_warns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kept_signals: None
) -> None:
    """Each process reports that it serves, notes whether it is quiet, and ends when both have."""
    code = f"""import os, sys, time
os.write(int(os.environ['CANTATA_READY_FD']), b'ready\\nserving\\n')
os.mkdir({str(tmp_path)!r} + '/' + sys.argv[1] + str('CANTATA_QUIET' in os.environ))
while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
"""
    errors = [""]

    def told() -> int:
        errors.append(capfd.readouterr().err)
        return "".join(errors).count("submit: serving a, b\n")

    supervise(
        [WorkerProcess(name, (name,), [sys.executable, "-S", "-c", code, name]) for name in ("a", "b")], "serving a, b"
    )

    until(told, "the line")
    assert told() == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["aFalse", "bTrue"]


def test_a_command_of_several_processes_is_ready_when_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_signals: None
) -> None:
    """One process is ready at once, the other when it is allowed to be; both end when the command was."""
    beat, allowed = tmp_path / "beat", tmp_path / "allowed"
    monkeypatch.setenv("CANTATA_HEARTBEAT_FILE", str(beat))
    code = f"""import os, sys, time
from pathlib import Path
while not (sys.argv[1] == 'a' or Path({str(allowed)!r}).exists()): time.sleep(0.01)
own = Path(os.environ['CANTATA_HEARTBEAT_FILE'])
assert own != Path({str(beat)!r})
while not Path({str(beat)!r}).exists(): own.touch(); time.sleep(0.1); Path({str(tmp_path)!r}, 'beats-' + sys.argv[1]).touch()
"""
    workers = [WorkerProcess(name, (name,), [sys.executable, "-S", "-c", code, name]) for name in ("a", "b")]
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(_let_second_be_ready, tmp_path)
        supervise(workers)

    assert looking.result() is False, "one of two is not enough"
    assert beat.exists()


def _let_second_be_ready(folder: Path) -> bool:
    """Wait until the first has beaten for longer than its parent looks; whether the command was ready then."""
    until((folder / "beats-a").exists, "the first")
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 2 * BEAT_S, "two looks")
    was_ready = (folder / "beat").exists()
    (folder / "allowed").touch()
    return was_ready


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_the_processes_of_a_worker_that_is_killed_end_too(tmp_path: Path) -> None:
    child = [
        sys.executable,
        "-S",
        "-c",
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    ]
    script = tmp_path / "parent.py"
    code = f"from {supervise.__module__} import *\nprefork.can_fork = bool  # which would import what workers need\n"
    script.write_text(f"{code}supervise([WorkerProcess('a', ('a',), {child!r})])")
    parent = subprocess.Popen([sys.executable, str(script)])
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the child"))

    parent.kill()
    parent.wait()

    until(lambda: identify(pid) is None, "the end of the child")


def test_queues_of_several_pools_get_a_process_each() -> None:
    workers = workers_for(("agents", "tools", "coordinator", "gpu", "tools"), "mine", None)

    assert [(worker.name, worker.queues) for worker in workers] == [
        ("mine-agents", ("agents",)),
        ("mine-coordinator", ("coordinator",)),
        ("mine-tools", ("tools", "gpu")),
    ]


def test_messages_to_webhooks_have_a_process_of_their_own_if_their_queue_is_named() -> None:
    workers = workers_for(("agents", "webhooks", "tools"), "mine", None)

    assert [each.queues for each in workers] == [("agents",), ("webhooks",), ("tools",)]
    assert unused_queues(["webhooks"]) == []
