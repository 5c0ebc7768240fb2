"""HTTP health requests to the gateway and Flower."""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from cantata.health.facts import ServiceProbe

PATHS = {"gateway": "/ready", "Flower": "/healthcheck"}
TIMEOUT_S = 3.0
MAX_BYTES = 10_000

_opener = build_opener(ProxyHandler({}))  # the environment may name an internet proxy, which must not be asked for local addresses


def probe_service(name: str, url: str) -> ServiceProbe:
    """Return the answer of a service to a health request at its address."""
    started = time.perf_counter()
    fault = ""
    try:
        with _opener.open(f"{url.rstrip('/')}{PATHS[name]}", timeout=TIMEOUT_S) as answer:
            answer.read(MAX_BYTES)
    except HTTPError as error:
        with error:
            fault = _error_message(error.read(MAX_BYTES)) or f"status {error.code}"
    except TimeoutError:
        return ServiceProbe(name, url, fault=f"does not answer within {TIMEOUT_S:.0f} s")
    except (OSError, HTTPException, ValueError) as error:
        return ServiceProbe(name, url, fault=f"cannot be reached ({getattr(error, 'reason', None) or error})")
    return ServiceProbe(name, url, answer_ms=(time.perf_counter() - started) * 1000, fault=fault)


def _error_message(body: bytes) -> str:
    """Return the message in an error body of the gateway; empty if there is none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
