"""What goes wrong, as callers get it: `{"error": {"code", "message", "faults": [...]}}` and an HTTP status."""

from __future__ import annotations

import traceback

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException

from cantata.errors import CantataError, ConfigError, Fault, UnavailableError, UnknownRunError
from cantata.models.values import Value
from cantata.models.wire import FaultInfo
from cantata.runs.results import refused_chain
from cantata.state.redis.connection import RedisFailure
from cantata.state.runs.streams import StreamsEnded

log = structlog.get_logger(__name__)

CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class ErrorDetail(Value):
    """Why a request was refused."""

    code: str = Field(description="for programs: bad_request, unauthorized, unknown_run, rate_limited, unavailable, ...")
    message: str = Field(description="for people: what, where, what to do")
    faults: list[FaultInfo] = Field(default_factory=list, description="everything that is wrong with the request, if it is at fault")


class ErrorBody(Value):
    """The body of every answer with a status from 400 on."""

    error: ErrorDetail = Field(description="why")


class RequestRejected(CantataError):
    """A request that is not answered as asked."""

    def __init__(self, status: int, message: str, *, code: str = "", faults: tuple[Fault, ...] = (), retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status, "error")
        self.faults = faults
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> ErrorBody:
        """As callers get it."""
        faults = [FaultInfo(message=_safe(fault.message), where=_safe(fault.where), line=fault.line) for fault in self.faults]
        return ErrorBody(error=ErrorDetail(code=self.code, message=_safe(str(self)), faults=faults))

    def response(self) -> JSONResponse:
        """The whole answer."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s + 0.5)))
        return JSONResponse(self.body.model_dump(mode="json"), self.status, headers)


def rejection(error: Exception) -> RequestRejected:
    """The rejection that an error means; what nobody foresaw is logged, and told without details."""
    match error:
        case RequestRejected():
            return error
        case ConfigError(code="session_full"):
            return RequestRejected(429, str(error), code=error.code, retry_after_s=1)
        case ConfigError(code="quota_exceeded"):
            return RequestRejected(429, str(error), code=error.code, retry_after_s=5)
        case ConfigError(code="no_json"):
            return RequestRejected(400, str(error), faults=error.faults)
        case ConfigError():
            return RequestRejected(422, str(error), code=error.code, faults=error.faults)
        case UnknownRunError():
            return RequestRejected(404, str(error), code="unknown_run")
        case UnavailableError() | RedisFailure():
            return RequestRejected(503, str(error), code="unavailable", retry_after_s=1)
        case StreamsEnded():
            return RequestRejected(503, str(error), code="ending", retry_after_s=1)
        case RequestValidationError():
            faults = tuple(Fault(str(each["msg"]), ".".join(map(str, each["loc"]))) for each in error.errors())
            return RequestRejected(422, "\n".join(map(str, faults)), code="bad_request", faults=faults)
        case HTTPException():
            return RequestRejected(error.status_code, str(error.detail))
    log.error("request_broke", trace="".join(traceback.format_exception(error)))  # not as `exc_info`: it may be shown with headers
    return RequestRejected(500, "this should not happen; the gateway's log says more", code="internal")


def refused(error: ConfigError) -> JSONResponse:
    """The answer to a chain that is refused: its response, in which `error` has all that other errors have."""
    meant = rejection(error).response()
    retry = {"Retry-After": meant.headers["Retry-After"]} if "Retry-After" in meant.headers else {}
    return JSONResponse(refused_chain(error).model_dump(mode="json"), meant.status_code if retry else 422, retry)


def install(app: FastAPI) -> None:
    """Have every error of an application answered in this shape."""

    async def answer(_request: Request, error: Exception) -> JSONResponse:
        refused = rejection(error)
        response = refused.response()
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    for kind in (CantataError, RedisFailure, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _safe(text: str) -> str:
    """A text that can be sent as UTF-8, whatever it quotes."""
    return text.encode("utf-8", "replace").decode()
