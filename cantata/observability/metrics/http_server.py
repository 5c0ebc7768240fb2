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
from cantata.observability.metrics.scrape_address import PORT, ScrapeAddress

log = structlog.get_logger(__name__)

CLIENT_S = 10.0  # for one that asks and then does not read
PATIENCE_S = 5.0  # for a port that the children of a killed worker still hold
RETRY_S = 0.1
POLL_S = 0.2  # how long it may take to end
WILD = frozenset({"0.0.0.0", "::"})


class ScrapeResponse(NamedTuple):
    """What is answered."""

    status: int
    content_type: str
    body: bytes


ScrapeHandler = Callable[[str, str], ScrapeResponse]
"""(query, Accept header) → what is answered."""


class MetricsServer:
    """Serves pages at a scrape_address, from now on."""

    def __init__(self, scrape_address: ScrapeAddress, pages: Mapping[str, ScrapeHandler]) -> None:
        """Raises UnavailableError if the scrape_address cannot be had."""
        self._http = _bind(scrape_address, pages)
        port = int(self._http.server_address[1])
        host = socket.gethostname() if scrape_address.host in WILD else scrape_address.host
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        threading.Thread(target=self._http.serve_forever, args=(POLL_S,), name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()

    def forget(self) -> None:
        """In a forked child: hold the port no longer than its parent does."""
        self._http.socket.close()


def _bind(scrape_address: ScrapeAddress, pages: Mapping[str, ScrapeHandler]) -> _ScrapeServer:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _ScrapeServer(scrape_address, pages)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                said = f"metrics cannot be shown at {scrape_address.host}, port {scrape_address.port}: {error.strerror}; name another port in {PORT}"
                raise UnavailableError(said) from error
            time.sleep(RETRY_S)


class _ScrapeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, scrape_address: ScrapeAddress, pages: Mapping[str, ScrapeHandler]) -> None:
        self.pages = pages
        self.address_family, _, _, _, address = socket.getaddrinfo(scrape_address.host, scrape_address.port, type=socket.SOCK_STREAM)[0]
        super().__init__(address[:2], _ScrapeRequestHandler)  # type: ignore[arg-type]  # a host and a port, of either family

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without asking the network for this machine's name

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("scrape_broke", exc_info=True)


class _ScrapeRequestHandler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _ScrapeServer

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


def _plain(status: int, text: str) -> ScrapeResponse:
    return ScrapeResponse(status, "text/plain; charset=utf-8", f"{text}\n".encode())
