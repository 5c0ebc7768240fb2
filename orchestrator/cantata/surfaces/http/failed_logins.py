"""Throttle of failed logins, by client address and user, and overall.

Behind one address there may be many clients, so only failures are counted. The memory of the throttle is bounded, whatever addresses come.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

PER_ADDRESS = 20  # failures of one address at once: several programs with an old token, each with some retries
PER_ADDRESS_S = 3.0  # until one more of it is free
OVERALL = 200  # of all addresses at once
OVERALL_S = 0.1
MAX_ADDRESSES = 10_000  # that are remembered, about 2 MB; then the one whose last failure is longest ago is forgotten
LOG_S = 60.0  # between log lines
NETWORK_BITS = 64  # of an IPv6 address: a client has at least so many to choose from

log = structlog.get_logger(__name__)


class FailedLogins:
    """Counts failed logins. For one event loop, or one thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """When all failures of an address and user are forgotten."""
        self._all_free_at = 0.0
        self._count, self._logged_at = 0, -LOG_S

    def __len__(self) -> int:
        return len(self._free_at)

    def wait_s(self, address: str, user: str = "") -> float:
        """Return 0 if a failure of an address, for a user, would be within its bound now, else in how many seconds."""
        own = self._free_at.get(_key(address, user), 0.0) - self._clock() - (PER_ADDRESS - 1) * PER_ADDRESS_S
        return round(max(0.0, own), 3)  # sums of decimals are not exact

    def record(self, address: str, user: str = "") -> float:
        """Count a failed login; return 0 if it is within the bounds of its address and of all, else in how many seconds one will be."""
        now, key = self._clock(), _key(address, user)
        overall_s = round(self._all_free_at - now - (OVERALL - 1) * OVERALL_S, 3)
        wait_s = max(self.wait_s(address, user), overall_s, 0.0)
        self._count += 1
        if now - self._logged_at >= LOG_S:
            log.warning("logins_failed", count=self._count, last_address=address, throttled=bool(wait_s))
            self._count, self._logged_at = 0, now
        if not wait_s:  # further ones do not prolong the wait
            self._free_at[key] = max(now, self._free_at.get(key, 0.0)) + PER_ADDRESS_S
            self._free_at.move_to_end(key)
            self._all_free_at = max(now, self._all_free_at) + OVERALL_S
            while len(self._free_at) > MAX_ADDRESSES or (self._free_at and next(iter(self._free_at.values())) <= now):
                self._free_at.popitem(last=False)
        return wait_s


def _key(address: str, user: str) -> str:
    return f"{_network(address)} {user[:100]}"


def _network(address: str) -> str:
    """Return an address as it is counted: an IPv6 address by its network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]  # of a Unix socket, or of a proxy's header
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))
    return str(found)
