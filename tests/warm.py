"""Starts the processes of tests, `python -m cantata...`, as forks of one that has imported what they import.

They are processes of their own, with their own arguments, environment, folder, streams and exit status; only the imports are shared,
which take seconds each. One such parent serves a whole run of tests, all of its processes at once; it is started with the first request.
"""

from __future__ import annotations

import array
import fcntl
import importlib
import inspect
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

PLACE = "WARM_SOCKET"
"""Names the socket of the parent, for all processes of a test run."""

MODULES = frozenset(
    {
        "cantata.surfaces.cli",
        "cantata.surfaces.cli.demo",
        "cantata.operation.embedded",
        "cantata.testing",
        "cantata_workers",
        "pytest",
    }
)
LOADED = (
    "cantata.surfaces.cli.main", "cantata.operation.embedded.supervision.supervisor", "cantata.testing", "cantata.client.client",
    "cantata.surfaces.cli.demo", "cantata.surfaces.gateway.api.chat_socket", "cantata.operation.health",
    "uvicorn.protocols.websockets.websockets_sansio_impl", "tornado.web", "mcp.server", "mcp.client.stdio",
)  # fmt: skip
MAX_FDS, ABOVE = 32, 1000
TOP = Path(__file__).resolve().parents[1]
HIDING = ("sitecustomize.py", "cantata", "cantata_frontends", "cantata_workers")
"""In a folder that comes before ours, each changes what a process imports first; one that has imported it already would not tell."""


# The side of the tests


def serve(add_cleanup: Callable[[Callable[[], None]], object]) -> None:
    """Start a parent for this run and everything in it; it ends in a function that is given to `add_cleanup`."""
    folder = tempfile.mkdtemp(prefix="cantata-warm-", dir="/tmp")
    os.environ[PLACE] = f"{folder}/s"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[PLACE])
    listening.listen(64)
    parent = subprocess.Popen(
        [sys.executable, "-P", __file__, str(listening.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=(listening.fileno(),),
        cwd="/",
    )
    listening.close()

    def end() -> None:
        parent.communicate()
        for path in (Path(os.environ[PLACE]), Path(folder)):
            path.rmdir() if path.is_dir() else path.unlink()

    add_cleanup(end)


def own_terminal() -> None:
    """As `preexec_fn`: make standard input the terminal that Ctrl-C is for."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class WarmPopen(subprocess.Popen[Any]):
    """A Popen that asks the parent for the processes that it can fork, and makes all others as usual."""

    _told: socket.socket | None = None
    _living: ClassVar[dict[int, WarmPopen]] = {}
    """Those that were forked for this process, of whom the kernel says that they are not its children."""

    def _execute_child(self, *args: Any) -> None:
        usual = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(usual).bind(*args).arguments
        program = _program(given)
        if program is None:
            usual(*args)
            return
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        streams = [own if number == -1 else number for own, number in enumerate(streams)]
        request = {**program, "command": list(map(os.fspath, given["args"])), "passed": list(given["pass_fds"])}
        asked = socket.socket(socket.AF_UNIX)
        asked.connect(os.environ[PLACE])
        text = json.dumps(request).encode("utf-8", "surrogateescape")
        fds = array.array("i", [*streams, *given["pass_fds"]])
        asked.sendmsg([len(text).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        asked.sendall(text)
        self.pid = int.from_bytes(_exactly(asked, 4), "big")
        self._told, self._child_created = asked, True
        self._living[self.pid] = self
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *[given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        )

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._told is None:
            return super()._internal_poll(*args, **more)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self._try_wait(os.WNOHANG)
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """What waitpid says of a child: its pid, and its status."""
        if self._told is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        self._told.setblocking(flags != os.WNOHANG)
        try:
            told = self._told.recv(4)
        except BlockingIOError:
            return 0, 0
        self._told.close()
        self._living.pop(self.pid, None)
        status = int.from_bytes(told, "big", signed=True) if told else -signal.SIGKILL  # the parent is gone
        self.returncode = status
        return self.pid, -status if status < 0 else status << 8


def wait(pid: int, flags: int, _usual: Callable[[int, int], tuple[int, int]] = os.waitpid) -> tuple[int, int]:
    """What `os.waitpid` says, with which asyncio waits; also of those that were forked for this process."""
    child = WarmPopen._living.get(pid)
    return child._try_wait(flags) if child else _usual(pid, flags)


def use() -> None:
    """Have this process start others so."""
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    os.waitpid = wait


def _program(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a command of Python's runs, if it is ours to fork: a module or a script, its arguments, and the folders first on its path."""
    command, environment = given["args"], os.environ if given["env"] is None else given["env"]
    if (
        PLACE not in os.environ
        or given["shell"]
        or isinstance(command, str | bytes)
        or given["preexec_fn"] not in (None, own_terminal)
    ):
        return None
    if given.get("process_group", -1) != -1:
        return None
    if _of_interpreter(environment) != _of_interpreter(os.environ):
        return None
    interpreter, *words = map(os.fspath, command)
    is_safe = words[:1] == ["-P"]
    option, *arguments = words[1:] if is_safe else words or [""]
    cwd = os.path.abspath(given["cwd"] or os.getcwd())
    paths = [str(Path(cwd, path)) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    usual = {
        "cwd": cwd,
        "env": {PLACE: os.environ[PLACE], **environment},
        "arguments": arguments,
        "own_terminal": given["preexec_fn"] is own_terminal,
    }
    foreign = [path for path in paths if os.path.realpath(path) != str(TOP)]
    if interpreter != sys.executable or any(Path(path, name).exists() for path in foreign for name in HIDING):
        return None
    if option == "-m" and arguments and arguments[0] in MODULES:
        return {
            **usual,
            "module": arguments[0],
            "arguments": arguments[1:],
            "path": paths if is_safe else [cwd, *paths],
        }
    if option.endswith(".py"):
        return {
            **usual,
            "script": option,
            "path": paths if is_safe else [str(Path(cwd, option).resolve().parent), *paths],
        }
    return None


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """What changes Python itself; the variables that are left out are heeded."""
    heeded = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {
        name: value for name, value in environment.items() if name.startswith(("PYTHON", "LD_")) and name not in heeded
    }


def _exactly(sender: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        if not (more := sender.recv(size - len(text))):
            raise RuntimeError("the parent of the tests' processes is gone; what it said stands above")
        text += more
    return text


# The side of the parent


class Parent:
    """Forks when it is asked to, and says how its children ended."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._children: dict[int, tuple[Any, socket.socket]] = {}
        self._selector = selectors.DefaultSelector()
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for source, react in ((wake, partial(os.read, wake, 512)), (0, sys.exit), (listening, self._answer)):
            self._selector.register(source, selectors.EVENT_READ, react)

    def run(self) -> None:
        """Serve until standard input ends."""
        while True:
            for key, _ in self._selector.select():
                key.data()
            for pid, (child, asked) in list(self._children.items()):
                if (status := child.poll()) is not None:
                    del self._children[pid]
                    with suppress(OSError):  # nobody waits for it any more
                        asked.sendall(status.to_bytes(4, "big", signed=True))
                    asked.close()

    def _answer(self) -> None:
        asked, _ = self._listening.accept()
        head, received, _, _ = socket.recv_fds(asked, 4, MAX_FDS)
        request = json.loads(_exactly(asked, int.from_bytes(head, "big")).decode("utf-8", "surrogateescape"))
        # Above all numbers that a child wants to find its own under.
        fds = [fcntl.fcntl(number, fcntl.F_DUPFD, ABOVE) for number in received]
        for number in received:
            os.close(number)
        prefork = _loaded()
        child = prefork.fork(
            partial(_be, prefork, request, fds[3:]),
            request["command"],
            environment=request["env"],
            streams=tuple(fds[:3]),
            passed=fds[3:],
        )
        for number in fds:
            os.close(number)
        self._children[child.pid] = child, asked
        asked.sendall(child.pid.to_bytes(4, "big"))


def _loaded() -> Any:
    """Everything is imported; the module that forks."""
    prefork = importlib.import_module("cantata.operation.embedded.supervision.prefork")
    libraries = importlib.import_module("cantata_workers.process.prefork_imports")
    if LOADED[0] not in sys.modules:
        libraries.common()
        libraries.models()
        for name in LOADED:
            importlib.import_module(name)
        assert prefork.can_fork()
        assert "prometheus_client" not in sys.modules, (
            "it decides as it is imported whether several processes count together"
        )
    return prefork


def _be(prefork: Any, request: dict[str, Any], fds: Sequence[int]) -> None:
    """Be the process that was asked for."""
    for number, wanted in zip(fds, request["passed"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.chdir(request["cwd"])
    if request["own_terminal"]:  # a fork has a session of its own
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        usual = getattr(sys, name)
        stream = open(  # noqa: SIM115
            number,
            mode,
            buffering=-1 if name != "stderr" else 1,
            encoding=usual.encoding,
            errors=usual.errors,
            closefd=False,
        )
        if name == "stdout" and request["env"].get("PYTHONUNBUFFERED"):
            stream.reconfigure(write_through=True)  # type: ignore[attr-defined]  # of a text stream
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    use()  # for what it starts itself, such as the supervisor of a stack
    importlib.reload(
        sys.modules["cantata.operation.fault_points"]
    )  # what the environment says is read as it is imported
    sys.path[:0] = request["path"]
    sys.dont_write_bytecode = bool(request["env"].get("PYTHONDONTWRITEBYTECODE"))
    sys.pycache_prefix = request["env"].get("PYTHONPYCACHEPREFIX") or None
    if "module" in request:
        prefork.run_module(request["module"], request["arguments"])
    else:
        sys.argv = [request["script"], *request["arguments"]]
        runpy.run_path(request["script"], run_name="__main__")


if __name__ == "__main__":
    Parent(socket.socket(fileno=int(sys.argv[1]))).run()
