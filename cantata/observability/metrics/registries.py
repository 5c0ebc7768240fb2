"""Registries of collectors: those given, the version, and process metrics from the kernel."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cantata.observability.metrics.families import BY_NAME
from cantata.observability.metrics.http_server import ScrapeHandler, ScrapeResponse


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
