"""Our workers beside a project of others: `submit worker --app`, with an application that has its addresses and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from redis import Redis

from cantata import ChainRun, Client
from cantata.engine.fleet import registry
from tests.acceptance.neighbours.behaviour import Running
from tests.acceptance.neighbours.brokers import RabbitMQ
from tests.integration.redis.servers import Server, until

APPLICATION = """
from celery import Celery

app = Celery("theirs", broker={broker!r}, backend={backend!r})
"""
QUEUES = {"coordinator", "agents", "webhooks", "tools", "tasks"}


class OurWorkers:
    """One `submit worker`, which can be killed in part, and is then started again as systemd would."""

    def __init__(
        self,
        folder: Path,
        redis: Redis,
        redis_url: str,
        broker: str,
        backend: str | None,
        *,
        app: str = "app:app",
        python: Path | str = sys.executable,
        **environment: str,
    ) -> None:
        """Start them; `app` may name another application, which is found by the variables in `environment`."""
        folder.mkdir()
        (folder / "app.py").write_text(APPLICATION.format(broker=broker, backend=backend))
        submit = [str(python), "-m", "cantata.surfaces.cli"]
        self._set(
            folder, redis, [*submit, "worker", "--app", app], {**os.environ, "REDIS_URL": redis_url, **environment}
        )

    @classmethod
    def of(cls, folder: Path, redis: Redis, worker: list[str], environment: Mapping[str, str]) -> OurWorkers:
        """Start them as a line of a page says, in the folder of a project."""
        made = cls.__new__(cls)
        made._set(folder, redis, worker, environment)
        return made

    def _set(self, folder: Path, redis: Redis, worker: list[str], environment: Mapping[str, str]) -> None:
        self._folder, self._redis, self._worker, self._environment = folder, redis, worker, environment
        self.start()

    def start(self) -> None:
        """Start them; they serve a moment later."""
        command = [*self._worker, "coordinator", "agents", "tools"]
        with (self._folder / "ours.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until they serve all queues."""

        def are_ready() -> bool:
            assert self._process.poll() is None, (self._folder / "ours.log").read_text()[-4000:]
            return {queue for worker in self._own() for queue in worker.queues} == QUEUES

        until(are_ready, f"our workers, which log to {self._folder / 'ours.log'},")

    def kill_tasks_worker(self) -> None:
        """Kill the one that sends their tasks and waits for the results, and start all again, since the others then end."""
        (pid,) = (worker.pid for worker in self._own() if "tasks" in worker.queues)
        os.kill(pid, signal.SIGKILL)
        assert self._process.wait(30) == 1
        self.start()

    def stop(self) -> None:
        """End them."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in (*(worker.pid for worker in self._own()), self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _own(self) -> list[registry.Worker]:
        return [
            worker for worker in registry.workers(self._redis) if worker.name.startswith(f"worker-{self._process.pid}-")
        ]


class Ours:
    """Our workers beside a project, a client, and the broker of all."""

    def __init__(self, workers: OurWorkers, client: Client, broker: RabbitMQ | Server) -> None:
        self.workers, self.client = workers, client
        self._broker = broker

    def restart_broker(self) -> None:
        """Restart it, and wait until our workers serve again."""
        if isinstance(self._broker, RabbitMQ):
            self._broker.restart()
        else:  # at once, and it keeps the runs and the results too
            self._broker.kill()
            self._broker.start()
            self._broker.wait()
        self.workers.wait()

    def chain(self, run_id: str) -> ChainRun:
        """A run of a chain."""
        run = self.client.run(run_id)
        assert isinstance(run, ChainRun)
        return run


class Beside(Protocol):
    """Starts ours, which know a result backend or none; runs are submitted with a configuration."""

    def __call__(self, backend: str | None, config: Path) -> AbstractContextManager[Ours]:
        """Return a block, at the end of which they end."""


def url_of(redis: Server) -> str:
    return f"redis://{redis.place}/0"


def executions(theirs: Running) -> Counter[str]:
    """How often each task of a run was received by their worker, and how often it succeeded."""
    return Counter(
        f"{name} {what}" for name, what in re.findall(r"Task (\S+)\[cantata-\S+\] (received|succeeded)", theirs.log())
    )


def event_of(run: ChainRun, kind: str, step: str) -> Mapping[str, Any] | None:
    """The first event of that kind of a step, if it came."""
    return next((event.model_dump() for event in run.log() if (event.type, event.step) == (kind, step)), None)
