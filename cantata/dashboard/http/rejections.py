"""Errors as HTTP rejections: status, code and retry delay; one table for the gateway and Flower."""

from __future__ import annotations

from typing import NamedTuple

from cantata.errors import ConfigError, UnavailableError, UnknownRunError
from cantata.state.redis.connection import RedisFailure
from cantata.state.runs.streams import StreamsEnded

DEFAULT_CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
"""HTTP status → the code of a rejection without one of its own."""


class Rejection(NamedTuple):
    """The answer to a request that failed."""

    status: int
    code: str
    message: str
    retry_after_s: float = 0.0
    """0 if the same request would fail again."""


def rejection_of(error: BaseException | None) -> Rejection | None:
    """Return the rejection for an error; None for an unexpected one."""
    message = str(error)
    match error:
        case ConfigError(code="session_full"):
            return Rejection(429, error.code, message, retry_after_s=1)
        case ConfigError(code="quota_exceeded"):
            return Rejection(429, error.code, message, retry_after_s=5)
        case ConfigError(code="no_json"):
            return Rejection(400, DEFAULT_CODES[400], message)
        case ConfigError():
            return Rejection(422, error.code, message)
        case UnknownRunError():
            return Rejection(404, "unknown_run", message)
        case UnavailableError() | RedisFailure():
            return Rejection(503, "unavailable", message, retry_after_s=1)
        case StreamsEnded():
            return Rejection(503, "ending", message, retry_after_s=1)
    return None


def signal_rejection(outcome: str, run_id: str, step: str, *, hint: str = "") -> Rejection | None:
    """Return the rejection for the outcome of a signal; None if it was taken or kept. `hint` follows the message for an unknown step."""
    match outcome:
        case "taken" | "kept":
            return None
        case "unknown":
            return Rejection(404, DEFAULT_CODES[404], f"no step {step!r} of run {run_id!r} waits for a signal{hint}")
        case "unclear":
            return Rejection(409, outcome, f"step {step!r} may be any of several of run {run_id!r}; name it by its whole id")
        case "full":
            message = f"run {run_id!r} stores as many early signals as it may; send this one when {step!r} waits"
            return Rejection(429, "quota_exceeded", message, retry_after_s=5)
        case "over":
            return Rejection(409, outcome, f"step {step!r} already has its value")
    return Rejection(409, outcome, f"run {run_id!r} is closed")
