"""A small HTTP server for those who scrape, in threads of its own."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import structlog

from cantata.errors import UnavailableError
from cantata.observability.metrics.scrape_address import PORT, Place

log = structlog.get_logger(__name__)

CLIENT_S = 10.0  # for one that asks and then does not read
PATIENCE_S = 5.0  # for a port that the children of a killed worker still hold
RETRY_S = 0.1
POLL_S = 0.2  # how long it may take to end
WILD = frozenset({"0.0.0.0", "::"})


class Answer(NamedTuple):
    """What is answered."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[str, str], Answer]
"""(query, Accept header) → what is answered."""


class Server:
    """Serves pages at a place, from now on."""

    def __init__(self, place: Place, pages: Mapping[str, Page]) -> None:
        """Raises UnavailableError if the place cannot be had."""
        self._http = _bind(place, pages)
        port = int(self._http.server_address[1])
        host = socket.gethostname() if place.host in WILD else place.host
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        threading.Thread(target=self._http.serve_forever, args=(POLL_S,), name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()

    def forget(self) -> None:
        """In a forked child: hold the port no longer than its parent does."""
        self._http.socket.close()


def _bind(place: Place, pages: Mapping[str, Page]) -> _Http:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _Http(place, pages)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                said = f"metrics cannot be shown at {place.host}, port {place.port}: {error.strerror}; name another port in {PORT}"
                raise UnavailableError(said) from error
            time.sleep(RETRY_S)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: Place, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self.address_family, _, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # a host and a port, of either family

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without asking the network for this machine's name

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("scrape_broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Http

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        page = self.server.pages.get(path)
        try:
            answer = page(query, self.headers.get("Accept", "")) if page else _plain(404, f"try {' or '.join(self.server.pages)}")
        except Exception:  # the edge: one scrape may fail, the next is answered
            log.exception("scrape_failed")
            answer = _plain(500, "this could not be gathered; the log says why")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _plain(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
