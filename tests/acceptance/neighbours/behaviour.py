"""The behaviour of a project, recorded from outside: what its callers, its workers and a monitor of its events see."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.neighbours.environments import HERE, kept
from tests.acceptance.neighbours.projects import Project
from tests.integration.redis.servers import free_port
from tests.waiting import until

THEIRS = HERE / "theirs"
PROBE_S = 90.0
POLLING = "celery.chord_unlock"  # retried until a chord is ready, as often as that takes
MASKS = [
    (re.compile(pattern), mask)
    for pattern, mask in {
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "ID",
        r"0x[0-9a-f]{6,}": "ADDRESS",
        r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,]\d+)?(\+00:00)?": "TIME",
        r"\d+\.\d+(e-\d+)?s\b": "DURATION",
        r"ForkPoolWorker-\d+": "PROCESS",
        r"gen\d+@": "gen@",
        r" +┃": " ┃",  # the right edge of a frame, which is as far as its longest line
        r"'delivery_tag': \d+": "NUMBER",
        r"Message-ID: <.*>|Date: .*|=+\d+==": "OF ONE MAIL",
    }.items()
]


@dataclass(frozen=True)
class Behaviour:
    """Values for `==`. Ids, addresses, times and durations are masked."""

    alone: Mapping[str, Any]
    """The app and the process of a caller that imported it and did nothing else."""
    calls: Mapping[str, Any]
    """Label → what was returned or raised, messages, result or error, state, and the events of the task."""
    others: list[str]
    """Events of the tasks that such calls sent on, such as links."""
    worker: Mapping[str, Any]
    """What the worker replies to remote control: its tasks, configuration and queues."""
    signals: Counter[str]
    """How often a worker sent each signal for each task."""
    ready: Mapping[str, Any]
    """The app and the process of the worker as it was ready."""
    log: Counter[str]
    """Lines of the worker."""
    more: Mapping[str, Any]
    """What the project's own means show: rows of its database, replies of its server."""

    def without_ours(self, project: Project, prefix: str = "cantata.") -> Behaviour:
        """Return the same without the tasks and modules that `prefix` begins the names of, and without what was heard of them.

        What is known of a project to be otherwise with Cantata is as it is without.
        """
        text = json.dumps({name: getattr(self, name) for name in ("alone", "worker", "ready")})
        for new, old in project.differs.items():
            assert new in text
            text = text.replace(new, old)
        pruned = _without(json.loads(text), prefix)
        heard = {
            name: Counter({line: n for line, n in getattr(self, name).items() if prefix not in line})
            for name in ("signals", "log")
        }
        heard["log"] -= Counter(project.remarks)
        return Behaviour(
            **{**vars(self), **pruned, **heard, "others": [event for event in self.others if prefix not in event]}
        )


class Running:
    """A copy of a project in a folder, with one worker as its authors start it."""

    def __init__(
        self,
        project: Project,
        environment: Path,
        folder: Path,
        variables: Mapping[str, str],
        masked: Sequence[str] = (),
    ) -> None:
        self.project, self.folder = project, folder
        self.config = folder / "cantata.yaml"
        shutil.copy(THEIRS / project.config, self.config)
        self._masked = (*masked, str(folder), str(environment))
        """Texts that differ from one recording to the next."""
        self._bin = environment / "bin"
        self._heard = folder / "heard.jsonl"
        self._log = folder / "worker.log"
        path = os.pathsep.join(
            map(str, (folder, folder / project.packages, THEIRS))
        )  # what `pip install -e .` adds to it too
        self.environment = {
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": path,
            "PYTHONHASHSEED": "0", "HEARD": str(self._heard), "PYTHONUNBUFFERED": "1",
            **{name: text.format(folder=folder) for name, text in project.more.items()}, **variables,
        }  # fmt: skip
        self.worker: subprocess.Popen[bytes] | None = None

    def run(self, *command: str, reads: str = "", **variables: str) -> str:
        """What a command of the project prints."""
        words = [str(self._bin / command[0]), *command[1:]]
        ran = subprocess.run(
            words,
            cwd=self.folder,
            env={**self.environment, **variables},
            input=reads,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_S,
        )
        assert ran.returncode == 0, f"{ran.stdout[-3000:]}{ran.stderr[-3000:]}\n{self.log()[-6000:]}"
        return ran.stdout

    def prepare(self) -> None:
        """Do what a new copy needs, or copy the file that this made before."""
        project = self.project
        if not project.prepared:
            self.run(*project.prepare)
            return

        def make(folder: Path) -> None:
            self.run(*project.prepare)
            folder.mkdir()
            shutil.copy(self.folder / project.prepared, folder)

        made = kept(f"{project.name}-prepared", (HERE / "projects.lock").read_text(), make)
        (self.folder / project.prepared).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / Path(project.prepared).name, self.folder / project.prepared)

    def start_worker(self, *modules: str) -> None:
        """Start the worker, which imports these modules too, and wait until it takes tasks."""
        words = [str(self._bin / "celery"), "-A", self.project.celery_app, "worker", "-l", "INFO"]
        if included := (*self.project.include, *modules):
            words += ["--include", ",".join(included)]
        began = len(self.log())
        with self._log.open("ab") as log:
            self.worker = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        worker = self.worker

        def is_ready() -> bool:
            text = self.log()[began:]
            assert worker.poll() is None, text
            return bool(re.search(r" ready\.$", text, re.MULTILINE))

        until(is_ready, f"the worker of {self.project.name!r}")

    def kill_worker(self) -> None:
        """End the worker and its pool at once."""
        if self.worker and self.worker.poll() is None:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait()

    def stop_worker(self) -> None:
        """Have the worker finish what it does, and end."""
        assert self.worker
        self.worker.terminate()
        self.worker.wait(60)

    def log(self) -> str:
        """What its workers have logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    @contextmanager
    def server(self, **variables: str) -> Iterator[str]:
        """Start the project's web server, and answer its address, which it prints."""
        log = self.folder / "server.log"
        with log.open("wb") as file:
            port = str(free_port())
            command = [word.format(port=port) for word in self.project.server]
            words = [str(self._bin / command[0]), *command[1:]]
            started = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**self.environment, **variables},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            yield until(lambda: self._address(started, log), f"the server of {self.project.name!r}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    @staticmethod
    def _address(server: subprocess.Popen[bytes], log: Path) -> str | None:
        assert server.poll() is None, log.read_text()[-3000:]
        found = re.search(r" (?:at|on) (http://[\d.:]+)", log.read_text())
        return found.group(1) if found else None

    def behaviour(self, *masked: str, **variables: str) -> Behaviour:
        """Record the project's behaviour, which ends its worker."""
        seen = self.run(*self.project.shell, reads=(THEIRS / self.project.calls).read_text(), **variables).splitlines()[
            -1
        ]
        self.stop_worker()

        def mask(text: str) -> str:
            for each in (*masked, *self._masked):
                text = text.replace(each, "MASKED")
            for pattern, instead in MASKS:
                text = pattern.sub(instead, text)
            return text

        heard = [json.loads(line) for line in mask(self._heard.read_text()).splitlines()]
        (ready,) = [line["snapshot"] for line in heard if "snapshot" in line]
        return Behaviour(
            **json.loads(mask(seen)),
            signals=Counter(
                f"{line['signal']} {line['task']} {line['arguments']}" for line in heard if line["task"] != POLLING
            ),
            ready=ready,
            log=Counter(line for line in mask(self.log()).splitlines() if POLLING not in line),
        )


def _without(value: Any, prefix: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(each, prefix) for name, each in value.items() if not name.startswith(prefix)}
    if isinstance(value, list):
        return [_without(each, prefix) for each in value if not (isinstance(each, str) and each.startswith(prefix))]
    return value
