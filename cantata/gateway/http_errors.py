"""HTTP error responses of the gateway: a status, and the body `{"error": {"code", "message", "faults": [...]}}`."""

from __future__ import annotations

import traceback

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from cantata.dashboard.http.rejections import DEFAULT_CODES, rejection_of
from cantata.errors import CantataError, ConfigError, Fault
from cantata.models.values import Value
from cantata.models.wire import FaultInfo
from cantata.runs.results import refused_chain
from cantata.state.redis.connection import RedisFailure

log = structlog.get_logger(__name__)


class ErrorDetail(Value):
    """The reason why a request was rejected."""

    code: str = Field(description="for programs: bad_request, unauthorized, unknown_run, rate_limited, unavailable, ...")
    message: str = Field(description="for people: what is wrong, where, what to do")
    faults: list[FaultInfo] = Field(default_factory=list, description="all faults of the request, if it has any")


class ErrorBody(Value):
    """The body of every response with a status from 400 on."""

    error: ErrorDetail = Field(description="the reason")


class RequestRejected(CantataError):
    """A request that the gateway rejects."""

    def __init__(self, status: int, message: str, *, code: str = "", faults: tuple[Fault, ...] = (), retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or DEFAULT_CODES.get(status, "error")
        self.faults = faults
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> ErrorBody:
        """Return the JSON body."""
        faults = [FaultInfo(message=_safe(fault.message), where=_safe(fault.where), line=fault.line) for fault in self.faults]
        return ErrorBody(error=ErrorDetail(code=self.code, message=_safe(str(self)), faults=faults))

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s + 0.5)))
        return JSONResponse(self.body.model_dump(mode="json"), self.status, headers)


def rejection(error: Exception) -> RequestRejected:
    """Return an error as a rejection; an unexpected error is logged, and its details are not sent."""
    if isinstance(error, RequestRejected):
        return error
    if isinstance(error, RequestValidationError):
        faults = tuple(Fault(str(each["msg"]), ".".join(map(str, each["loc"]))) for each in error.errors())
        return RequestRejected(422, "\n".join(map(str, faults)), code="bad_request", faults=faults)
    if isinstance(error, HTTPException):
        return RequestRejected(error.status_code, str(error.detail))
    if found := rejection_of(error):
        faults = error.faults if isinstance(error, ConfigError) and found.status in (400, 422) else ()
        return RequestRejected(found.status, found.message, code=found.code, faults=faults, retry_after_s=found.retry_after_s)
    log.error("request_failed", trace="".join(traceback.format_exception(error)))  # not as `exc_info`: it may be shown with headers
    return RequestRejected(500, "an unexpected error of the gateway; see its log", code="internal")


def chain_rejection(error: ConfigError) -> JSONResponse:
    """Return the response to an invalid chain request: a chain response whose `error` has the fields of other errors."""
    response = rejection(error).response()
    retry = {"Retry-After": response.headers["Retry-After"]} if "Retry-After" in response.headers else {}
    return JSONResponse(refused_chain(error).model_dump(mode="json"), response.status_code if retry else 422, retry)


def install(app: FastAPI) -> None:
    """Register handlers that answer every error of an application in this format."""

    async def answer(_request: Request, error: Exception) -> JSONResponse:
        response = rejection(error).response()
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    for kind in (CantataError, RedisFailure, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _safe(text: str) -> str:
    """Return a text that can be sent as UTF-8, whatever it quotes."""
    return text.encode("utf-8", "replace").decode()
