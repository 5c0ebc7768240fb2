"""Export of metrics: registries of collectors, and a small HTTP server in threads of its own."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cantata.errors import UnavailableError
from cantata.operation.metrics.families import BY_NAME
from cantata.operation.metrics.scrape_address import PORT, ScrapeAddress

log = structlog.get_logger(__name__)

CLIENT_TIMEOUT_S = 10.0  # for a client that does not read
BIND_TIMEOUT_S = 5.0  # for a port that the children of a killed worker still have open
RETRY_S = 0.1
POLL_S = 0.2  # the longest time to stop
WILDCARDS = frozenset({"0.0.0.0", "::"})


class ScrapeResponse(NamedTuple):
    """Response to a scrape."""

    status: int
    content_type: str
    body: bytes


ScrapeHandler = Callable[[str, str], ScrapeResponse]
"""(query, Accept header) → response."""


class MetricsServer:
    """Serves one handler for each path at an address, in a background thread."""

    def __init__(self, address: ScrapeAddress, handlers: Mapping[str, ScrapeHandler]) -> None:
        """Start to serve. Raises UnavailableError if the address is not available."""
        self._http = _bind(address, handlers)
        port = int(self._http.server_address[1])
        host = socket.gethostname() if address.host in WILDCARDS else address.host
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        threading.Thread(target=self._http.serve_forever, args=(POLL_S,), name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()

    def close_inherited(self) -> None:
        """Close the socket in a forked child, so that the port is free when the parent ends."""
        self._http.socket.close()


def _bind(address: ScrapeAddress, handlers: Mapping[str, ScrapeHandler]) -> _ScrapeServer:
    deadline = time.monotonic() + BIND_TIMEOUT_S
    while True:
        try:
            return _ScrapeServer(address, handlers)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                problem = f"metrics cannot be served at {address.host}, port {address.port}: {error.strerror}"
                raise UnavailableError(f"{problem}; name another port in {PORT}") from error
            time.sleep(RETRY_S)


class _ScrapeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: ScrapeAddress, handlers: Mapping[str, ScrapeHandler]) -> None:
        self.handlers = handlers
        self.address_family, _, _, _, resolved = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        super().__init__(resolved[:2], _ScrapeRequestHandler)  # type: ignore[arg-type]  # a host and a port, of either family

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without asking the network for this machine's name

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("scrape_aborted", exc_info=True)


class _ScrapeRequestHandler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server: _ScrapeServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        handler = self.server.handlers.get(path)
        try:
            answer = (
                handler(query, self.headers.get("Accept", ""))
                if handler
                else _plain(404, f"try {' or '.join(self.server.handlers)}")
            )
        except Exception:  # the edge: one scrape may fail, the next one is answered
            log.exception("scrape_failed")
            answer = _plain(500, "the metrics could not be read; see the log")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _plain(status: int, text: str) -> ScrapeResponse:
    return ScrapeResponse(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def registry(version: str, *collectors: Collector) -> CollectorRegistry:
    """Return a registry of these, with the version and this process's processor time, memory and open files."""
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    for collector in (_BuildInfo(version), *collectors):
        found.register(collector)
    return found


def make_handler(registry: CollectorRegistry) -> ScrapeHandler:
    """Return a handler that exports a registry, in the format that the Accept header asks for."""

    def export(_query: str, accept: str) -> ScrapeResponse:
        encode, content_type = choose_encoder(accept)
        return ScrapeResponse(200, content_type, encode(registry))

    return export


class _BuildInfo(Collector):
    def __init__(self, version: str) -> None:
        self._version = version

    def collect(self) -> Iterable[Metric]:
        family = BY_NAME["cantata_build_info"]
        metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        metric.add_metric([self._version], 1.0)
        yield metric
