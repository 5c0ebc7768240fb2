"""Origin of a request: a program or our own page, or another page in a browser. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

_LOCAL_NAMES = frozenset({"localhost", "localhost."})


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


def is_local_request(host: str) -> bool:
    """Return whether a `Host` header names a loopback address. After DNS rebinding it names the host of the attacking page."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def foreign_page(headers: Mapping[str, str]) -> str | None:
    """Return the page that sends a request, if the browser's headers name another page than ours; else None."""
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != headers.get("host", ""):
        return f"a page of {origin!r}"
    return None if headers.get("sec-fetch-site", "none") in ("none", "same-origin") else "another page"


def _netloc(origin: str) -> str | None:
    """Return host and port of an origin; None if it is no URL."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
