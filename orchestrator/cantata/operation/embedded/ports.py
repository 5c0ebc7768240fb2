"""The ports of a stack's services: bound before anything starts, kept open by the supervisor, recorded for the next stack of the folder."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cantata.operation.embedded.home import Home

HOST = "127.0.0.1"
BACKLOG = 2048  # connections that wait to be accepted


@dataclass(frozen=True)
class BoundPort:
    """A listening socket and its port."""

    listening: socket.socket
    wanted: int
    """The default port of the service."""

    @property
    def number(self) -> int:
        return int(self.listening.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.number}"


def bind(home: Home, wanted: Mapping[str, int]) -> dict[str, BoundPort]:
    """Listen for each service: on the port that it last had in this folder, else on its default port, else on any free port."""
    before = _read(home)
    return {name: BoundPort(_listen((before.get(name, port), port, 0)), port) for name, port in wanted.items()}


def save(home: Home, numbers: Mapping[str, int]) -> None:
    """Record the ports of this folder's services. The caller must hold the folder's lock."""
    with suppress(OSError):  # a full disk: the next stack of the folder chooses again
        (home.path / "ports.json").write_text(json.dumps(_read(home) | dict(numbers)) + "\n", "utf-8")


def close(ports: Mapping[str, BoundPort]) -> None:
    """Close the sockets in this process."""
    for port in ports.values():
        port.listening.close()


def is_free(number: int) -> bool:
    """Return whether a service could listen on this port."""
    try:
        _listen((number,)).close()
    except OSError:
        return False
    return True


def _read(home: Home) -> dict[str, int]:
    try:
        found = json.loads((home.path / "ports.json").read_text("utf-8"))
        return {str(name): int(number) for name, number in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _listen(numbers: tuple[int, ...]) -> socket.socket:
    for number in numbers:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listening.close()
            last = error
            continue
        return listening
    raise last
