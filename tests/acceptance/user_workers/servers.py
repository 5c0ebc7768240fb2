"""A server that answers as Amazon's SQS does, on loopback."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from tests.integration.redis.servers import HERE, free_port
from tests.waiting import until

REGION = "us-east-1"


class SQS:
    """moto, which keeps its queues in memory."""

    def __init__(self, python: Path, folder: Path) -> None:
        port = free_port()
        self.url = f"sqs://key:secret@{HERE}:{port}"
        self._address = f"http://{HERE}:{port}/moto-api/"
        with (folder / "sqs.log").open("wb") as log:
            command = [str(python.with_name("moto_server")), "-H", HERE, "-p", str(port)]
            self._process = subprocess.Popen(command, cwd=folder, env={**os.environ}, stdout=log, stderr=log)
        until(self._answers, f"moto, which logs to {folder / 'sqs.log'},")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None
        with suppress(OSError), urlopen(self._address, timeout=5) as answer:
            return bool(answer.status == 200)
        return False
