"""The containers of one Compose project on the engine of this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

TOP = Path(__file__).parents[2]
DEVELOPMENT = (TOP / "docker-compose.yml",)
PRODUCTION = (*DEVELOPMENT, TOP / "deploy" / "compose.production.yml")
OURS = ("CANTATA_", "COMPOSE_", "FLOWER_", "REDIS_")
COMPOSE = Path(sys.executable).with_name("docker-compose")
ANSWER_S = 10.0
TAIL_LINES = "40"


class EngineError(Exception):
    """A command of the engine failed; the message is what it said."""


def missing() -> str | None:
    """Why there is no engine to test with; None if there is one."""
    if not shutil.which("docker"):
        return "there is no docker command on PATH"
    if not COMPOSE.is_file():
        return "docker-compose is not in .venv"
    asked = subprocess.run(["docker", "version"], capture_output=True, text=True, timeout=60, check=False)
    said = asked.stderr.strip().splitlines()
    return (
        None
        if asked.returncode == 0
        else f"no container engine answers ({said[-1] if said else 'docker version failed'})"
    )


class Project:
    """Our services, on free ports: those of production with secrets made up for this test, those of development without."""

    def __init__(
        self, folder: Path, *, image: str, files: Sequence[Path] = PRODUCTION, overrides: Sequence[Path] = ()
    ) -> None:
        self.image = image
        self._files = files
        self.token, self.login = secrets.token_hex(16), ("operator", secrets.token_hex(8))
        self._password = secrets.token_hex(16)
        self._env_file = folder / "env"
        self._env_file.touch(0o600)
        self._env_file.write_text("".join(f"{name}='{value}'\n" for name, value in self._variables().items()))
        files = [*files, Path(__file__).with_name("docker-compose.yml"), *overrides]
        self._command = [
            str(COMPOSE),
            "--ansi",
            "never",
            "--progress",
            "quiet",
            "--project-name",
            f"cantata-test-{os.getpid()}",
        ]
        self._command += [
            "--env-file",
            str(self._env_file),
            *(word for file in files for word in ("--file", str(file))),
        ]

    def _variables(self) -> Mapping[str, str]:
        here = Path(__file__).parent
        secret = {
            "REDIS_PASSWORD": self._password,
            "CANTATA_GATEWAY_TOKENS": json.dumps({self.token: {"tenant": "", "scopes": ["admin"]}}),
            "FLOWER_BASIC_AUTH": ":".join(self.login),
        }
        return {
            **(secret if self._files == PRODUCTION else {}),
            "CANTATA_IMAGE": self.image,
            "CANTATA_CONFIG_DIR": str(here / "config"),
            "CANTATA_GATEWAY_PUBLISHED": "0",
            "CANTATA_FLOWER_PUBLISHED": "0",
            "TEST_FOLDER": str(here),
        }

    def compose(self, *words: str, limit_s: float = 120.0) -> str:
        """What `docker compose` says to this. Raises EngineError."""
        return _run([*self._command, *words], limit_s)

    def address(self, service: str, port: int) -> str:
        """Where a service is reached from this machine."""
        return f"http://{self.compose('port', service, str(port)).strip()}"

    def inside(self, service: str, *command: str) -> str:
        """What a command says in a container of a service."""
        return self.compose("exec", "--no-TTY", service, *command)

    def containers(self) -> dict[str, dict[str, Any]]:
        """Every container, by its short id: what `docker inspect` tells of it."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = cast("list[dict[str, Any]]", json.loads(_run(["docker", "inspect", *ids], ANSWER_S)) if ids else [])
        return {str(each["Id"])[:12]: each for each in found}

    def kill(self, container: str) -> None:
        """Kill a container, as a machine that loses power would."""
        _run(["docker", "kill", "--signal", "KILL", container], ANSWER_S)

    def image_mb(self) -> float:
        """How large the image is."""
        return int(_run(["docker", "image", "inspect", "--format", "{{.Size}}", self.image], ANSWER_S)) / 1e6

    def last_words(self) -> str:
        """The end of what each service logged, and how each container stands."""
        return f"{self.compose('logs', '--no-color', '--tail', TAIL_LINES)}\n{self.compose('ps', '--all')}"

    def remove(self) -> None:
        """Leave nothing of it but the image."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "1")


def service_of(container: Mapping[str, Any]) -> str:
    """Of which service a container is."""
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def _run(command: Sequence[str], limit_s: float) -> str:
    # Variables win over the file of variables, so those of whoever runs this are left out.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    try:
        ran = subprocess.run(
            command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{command[-1]!r} took longer than {limit_s:.0f} s: {error.cmd}") from error
    if ran.returncode:
        raise EngineError(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
    return ran.stdout
