"""Asks the gateway and Flower whether they are there."""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from cantata.health.facts import Door

PATHS = {"gateway": "/ready", "Flower": "/healthcheck"}
ANSWER_S = 3.0
MOST_BYTES = 10_000

_opener = build_opener(ProxyHandler({}))  # a proxy for the internet would be asked for an address of this machine


def ask(name: str, url: str) -> Door:
    """How this service answers at its address."""
    since = time.perf_counter()
    try:
        with _opener.open(f"{url.rstrip('/')}{PATHS[name]}", timeout=ANSWER_S) as answer:
            answer.read(MOST_BYTES)
            fault = ""
    except HTTPError as error:
        with error:
            fault = _said(error.read(MOST_BYTES)) or f"status {error.code}"
    except TimeoutError:
        return Door(name, url, fault=f"does not answer within {ANSWER_S:.0f} s")
    except (OSError, HTTPException, ValueError) as error:
        return Door(name, url, fault=f"cannot be reached ({getattr(error, 'reason', None) or error})")
    return Door(name, url, answer_ms=(time.perf_counter() - since) * 1000, fault=fault)


def _said(body: bytes) -> str:
    """The message of an error of the gateway."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
