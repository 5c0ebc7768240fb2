"""Our workers beside a project of others: `submit worker --app`, with an application that has its addresses and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from redis import Redis

from cantata.engine.fleet import registry
from tests.integration.redis.servers import until

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
        self._folder, self._redis, self._app, self._python = folder, redis, app, str(python)
        self._environment = {**os.environ, "REDIS_URL": redis_url, **environment}
        self.start()

    def start(self) -> None:
        """Start them; they serve a moment later."""
        command = [
            self._python,
            "-m",
            "cantata.surfaces.cli",
            "worker",
            "--app",
            self._app,
            "coordinator",
            "agents",
            "tools",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until they serve all queues."""

        def are_ready() -> bool:
            assert self._process.poll() is None, (self._folder / "log").read_text()[-4000:]
            return {queue for worker in self._own() for queue in worker.queues} == QUEUES

        until(are_ready, f"our workers, which log to {self._folder / 'log'},")

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
