"""A real HTTP server that takes messages of webhooks, and answers as it is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HANG = 0
"""In place of a status: no answer comes before the server ends."""


class Message(NamedTuple):
    """A message as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Its id."""
        return self.headers["webhook-id"]

    @property
    def content(self) -> dict[str, Any]:
        """Its body as JSON."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed_with(self, secret: str) -> bool:
        """Whether its signature is that of a secret."""
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
        return hmac.compare_digest(self.headers["webhook-signature"], f"v1,{base64.b64encode(digest).decode()}")


class Receiver:
    """The server, and what it got."""

    def __init__(self, statuses: Sequence[int], host: str = "127.0.0.1") -> None:
        self.host = host
        self.messages: list[Message] = []
        self._statuses = list(statuses)
        self._ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.messages.append(Message({name.lower(): value for name, value in self.headers.items()}, body))
                status = receiver._statuses.pop(0) if receiver._statuses else 200
                if status == HANG:
                    receiver._ended.wait()
                    return
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", f"{receiver.url}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._http = ThreadingHTTPServer((host, 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{self.host}:{self._http.server_port}"

    def has(self, count: int) -> bool:
        """Whether it got so many messages."""
        return len(self.messages) == count

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def receiving(*statuses: int, host: str = "127.0.0.1") -> Iterator[Receiver]:
    """A receiver that answers its first messages with these statuses, and the others with 200."""
    receiver = Receiver(statuses, host)
    try:
        yield receiver
    finally:
        receiver.close()
