"""A RabbitMQ of a test's own, which can be started again with its data."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from kombu import Connection, Queue

from tests.acceptance.neighbours.environments import missing
from tests.integration.redis.servers import HERE, free_port
from tests.waiting import until

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on PATH needs the user and the folders of Debian's service
QUEUE = "celery"  # Celery's own default
PROTOCOL = b"AMQP\x00\x00\x09\x01"


class RabbitMQ:
    """One node on loopback, with its own name, folder and port mapper, beside any other of this machine."""

    def __init__(self, folder: Path) -> None:
        if not Path(SERVER).exists():
            missing("rabbitmq-server", "Debian: apt-get install --no-install-recommends rabbitmq-server")
        self._folder = folder
        folder.mkdir()
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").touch()
        self._port, nodes, mapper = free_port(), free_port(), str(free_port())
        self.url = f"amqp://guest:guest@{HERE}:{self._port}//"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # of the cookie that nodes share
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": HERE,
            "RABBITMQ_NODENAME": f"cantata-{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HERE,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server, which so has a pid that is known
            "RABBITMQ_SERVER_START_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        }
        # The port mapper that the server would start itself would stay.
        self._mapper = subprocess.Popen([str(shutil.which("epmd")), "-port", mapper, "-address", HERE])
        self.start()

    def start(self) -> None:
        """Start it; it is there some seconds later."""
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [SERVER],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it takes connections."""
        until(self._answers, f"RabbitMQ, which logs to {self._folder / 'log'},")

    def empty(self) -> None:
        """Delete the queue that projects share, with what a killed worker left in it."""
        with Connection(self.url) as connection:
            Queue(QUEUE, channel=connection.default_channel).delete()

    def restart(self) -> None:
        """Stop it as an operator does, with its data, and start it again."""
        self.process.terminate()
        self.process.wait(30)
        self.start()
        self.wait()

    def kill(self) -> None:
        """End it at once, with the processes that look up names for it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._mapper.kill()
        self._mapper.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "log").read_text()[-4000:]
        with suppress(OSError), socket.create_connection((HERE, self._port), 5) as opened:
            opened.sendall(PROTOCOL)
            return bool(opened.recv(8))
        return False
