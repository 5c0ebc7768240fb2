"""What a process shows: its collectors, the version, and what the kernel knows of it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cantata.observability.metrics.families import BY_NAME
from cantata.observability.metrics.http_server import ScrapeHandler, ScrapeResponse


def registry(version: str, *collectors: Collector) -> CollectorRegistry:
    """A registry of these, with the version and this process's processor time, memory and open files."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    for collector in (_Build(version), *collectors):
        made.register(collector)
    return made


def page_of(registry: CollectorRegistry) -> ScrapeHandler:
    """The metrics of a registry, in the format that is asked for."""

    def page(_query: str, accept: str) -> ScrapeResponse:
        encode, content_type = choose_encoder(accept)
        return ScrapeResponse(200, content_type, encode(registry))

    return page


class _Build(Collector):
    def __init__(self, version: str) -> None:
        self._version = version

    def collect(self) -> Iterable[Metric]:
        family = BY_NAME["cantata_build_info"]
        told = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        told.add_metric([self._version], 1.0)
        yield told
