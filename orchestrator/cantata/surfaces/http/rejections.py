"""Rejections of requests, for the gateway and Flower: the status and JSON body of an error's HTTP response."""

from __future__ import annotations

from pydantic import Field

from cantata.client.failures import RedisFailure, RedisRefusal, StreamsEnded, is_outage, reason
from cantata.client.records import SignalAnswer
from cantata.errors import (
    CantataError,
    ConfigError,
    Fault,
    StoredDataError,
    UnavailableError,
    UnknownRunError,
    unreadable,
)
from cantata.flows.wire import FaultInfo
from cantata.values import Value

DEFAULT_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}
"""HTTP status → the code of a rejection without one of its own."""


class ErrorDetail(Value):
    """The reason why a request was rejected."""

    code: str = Field(
        description="for programs: bad_request, unauthorized, unknown_run, rate_limited, unavailable, ..."
    )
    message: str = Field(description="for people: what is wrong, where, what to do")
    faults: list[FaultInfo] = Field(default_factory=list, description="all faults of the request, if it has any")


class ErrorBody(Value):
    """The body of every response with a status from 400 on."""

    error: ErrorDetail = Field(description="the reason")


class RequestRejected(CantataError):
    """A request that is rejected. `retry_after_s` is 0 if the same request would fail again."""

    def __init__(
        self, status: int, message: str, *, code: str = "", faults: tuple[Fault, ...] = (), retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or DEFAULT_CODES.get(status, "error")
        self.faults = faults
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> ErrorBody:
        """Return the JSON body."""
        faults = [
            FaultInfo(message=_safe(fault.message), where=_safe(fault.where), line=fault.line) for fault in self.faults
        ]
        return ErrorBody(error=ErrorDetail(code=self.code, message=_safe(str(self)), faults=faults))


def rejection_of(error: BaseException | None) -> RequestRejected | None:
    """Return an error as a rejection; None for an unexpected one."""
    message = str(error)
    match error:
        case RequestRejected():
            return error
        case ConfigError(code="session_full"):
            return RequestRejected(429, message, code=error.code, retry_after_s=1)
        case ConfigError(code="quota_exceeded"):
            return RequestRejected(429, message, code=error.code, retry_after_s=5)
        case ConfigError(code="schedule_exists"):
            return RequestRejected(409, message, code=error.code)
        case ConfigError(code="unknown_session" | "unknown_schedule"):
            return RequestRejected(404, message)
        case ConfigError(code="batch_full"):
            return RequestRejected(429, message, code=error.code, retry_after_s=1)
        case ConfigError(code="unknown_batch"):
            return RequestRejected(404, message, code=error.code)
        case ConfigError(code="batch_state" | "batch_differs"):
            return RequestRejected(409, message, code=error.code)
        case ConfigError(code="no_json"):
            return RequestRejected(400, message, faults=error.faults)
        case ConfigError():
            return RequestRejected(422, message, code=error.code, faults=error.faults)
        case StoredDataError():
            return RequestRejected(500, message, code="unreadable")
        case RedisRefusal() if not is_outage(error):
            return RequestRejected(
                500, f"what is stored here cannot be read ({unreadable(error)}); delete it", code="unreadable"
            )
        case UnknownRunError():
            return RequestRejected(404, message, code="unknown_run")
        case UnavailableError() | RedisFailure():
            said = reason(error) if isinstance(error, RedisFailure) else message
            return RequestRejected(503, said, code="unavailable", retry_after_s=1)
        case StreamsEnded():
            return RequestRejected(503, message, code="ending", retry_after_s=1)
    return None


def check_signal(answer: SignalAnswer) -> None:
    """Raise RequestRejected unless a signal was taken or kept."""
    match answer.outcome:
        case "taken" | "kept":
            return
        case "full":
            raise RequestRejected(429, answer.message, code="quota_exceeded", retry_after_s=5)
        case "not_allowed":
            raise RequestRejected(403, answer.message, code="not_allowed")
    raise RequestRejected(409, answer.message, code=answer.outcome)


def _safe(text: str) -> str:
    """Return a text that can be sent as UTF-8, whatever it quotes."""
    return text.encode("utf-8", "replace").decode()
