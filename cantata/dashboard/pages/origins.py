"""Who sends a request: a program or our own page, or another page that is open in somebody's browser. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

_LOCAL_NAMES = frozenset({"localhost", "localhost."})


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def is_local_request(host: str) -> bool:
    """Whether a `Host` header names this machine only. After DNS rebinding it names the page that wants to get around its origin."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def foreign_page(headers: Mapping[str, str]) -> str | None:
    """The page that sends a request, if a browser says that it is not ours: its own address stands in `Origin`."""
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != headers.get("host", ""):
        return f"a page of {origin!r}"
    return None if headers.get("sec-fetch-site", "none") in ("none", "same-origin") else "another page"


def _netloc(origin: str) -> str | None:
    """The host and port of an origin; None if it is no address."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
