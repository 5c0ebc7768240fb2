"""Checks of the gateway, of Flower and of the local stack. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cantata.health.facts import ServiceProbe
from cantata.health.report import Check, degraded, failing, ok

SLOW_MS = 1000.0


def check_services(probes: Sequence[ServiceProbe]) -> list[Check]:
    """Return a check of each HTTP service. Runs need none of them, but clients need the gateway."""
    return [_service(probe) for probe in probes]


def _service(probe: ServiceProbe) -> Check:
    if probe.answer_ms is None:
        check = failing if probe.name == "gateway" else degraded
        return check(probe.name, f"{probe.url} {probe.fault}; runs continue without it", "restart it, or check its log")
    message = f"{probe.url} answers in {probe.answer_ms:.0f} ms"
    if probe.fault:
        return degraded(probe.name, f"{message}, but is not ready: {probe.fault}")
    if probe.answer_ms > SLOW_MS:
        return degraded(probe.name, f"{message}, which is slow; runs continue without it", "check its load")
    return ok(probe.name, message)


def check_stack(home: str, dead_processes: Sequence[str], code_fault: str = "") -> list[Check]:
    """Return a check of the local stack, if one runs."""
    if not home:
        return []
    if code_fault:
        return [
            degraded("stack", f"the stack in {home} still serves the previous code: {code_fault}", "correct the file; it is then reloaded")
        ]
    if dead_processes:
        message = f"of the stack in {home}, {', '.join(dead_processes)} {'is' if len(dead_processes) == 1 else 'are'} not running"
        return [degraded("stack", message, f"check {home}/logs if that does not restart by itself")]
    return [ok("stack", f"all processes are running, in {home}")]
