"""Address at which a process serves its metrics; none unless a port is named."""

from __future__ import annotations

from dataclasses import dataclass

from cantata.settings import settings

PORT = "CANTATA_METRICS_PORT"


@dataclass(frozen=True, slots=True)
class ScrapeAddress:
    """An address to listen at; port 0 is any free port."""

    host: str
    port: int


def scrape_address(port: int | None = None) -> ScrapeAddress | None:
    """Return the address for this port, else for that of the environment; None without either. Raises ConfigError."""
    found = settings()
    chosen = found.metrics_port if port is None else port
    return None if chosen is None else ScrapeAddress(found.metrics_host, chosen)


def port_after(first: int, number: int) -> int:
    """Return the port of one of several processes that start together: consecutive ports, or 0 for all."""
    return first + number if first else 0
