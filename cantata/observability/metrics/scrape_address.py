"""Where a process shows its metrics: nowhere, unless a port is named."""

from __future__ import annotations

from dataclasses import dataclass

from cantata.settings import settings

PORT = "CANTATA_METRICS_PORT"


@dataclass(frozen=True, slots=True)
class ScrapeAddress:
    """An address to listen at; port 0 is any that is free."""

    host: str
    port: int


def scrape_address(port: int | None = None) -> ScrapeAddress | None:
    """Where to show metrics: at this port, else at the one that the environment names; None for nowhere. Raises ConfigError."""
    found = settings()
    chosen = found.metrics_port if port is None else port
    return None if chosen is None else ScrapeAddress(found.metrics_host, chosen)


def port_after(first: int, number: int) -> int:
    """The port of one of several processes that are started together: they follow each other, save for 0."""
    return first + number if first else 0
