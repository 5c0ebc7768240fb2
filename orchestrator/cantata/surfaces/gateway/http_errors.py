"""HTTP error responses of the gateway."""

from __future__ import annotations

import traceback

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cantata.client.failures import RedisFailure
from cantata.client.records import refused_chain
from cantata.errors import CantataError, ConfigError, Fault
from cantata.surfaces.gateway.audited_routes import record_rejection
from cantata.surfaces.http.rejections import RequestRejected, rejection_of

log = structlog.get_logger(__name__)


def rejection(error: Exception) -> RequestRejected:
    """Return an error as a rejection; an unexpected error is logged, and its details are not sent."""
    if isinstance(error, RequestValidationError):
        faults = tuple(Fault(str(each["msg"]), ".".join(map(str, each["loc"]))) for each in error.errors())
        return RequestRejected(422, "\n".join(map(str, faults)), code="bad_request", faults=faults)
    if isinstance(error, HTTPException):
        return RequestRejected(error.status_code, str(error.detail))
    if found := rejection_of(error):
        return found
    log.error(
        "request_failed", trace="".join(traceback.format_exception(error))
    )  # not as `exc_info`: it may be shown with headers
    return RequestRejected(500, "an unexpected error of the gateway; see its log", code="internal")


def response_of(rejected: RequestRejected) -> JSONResponse:
    """Return the HTTP response of a rejection."""
    headers = {"WWW-Authenticate": "Bearer"} if rejected.status == 401 else {}
    if rejected.retry_after_s:
        headers["Retry-After"] = str(max(1, round(rejected.retry_after_s + 0.5)))
    return JSONResponse(rejected.body.model_dump(mode="json"), rejected.status, headers)


def chain_rejection(error: ConfigError) -> JSONResponse:
    """Return the response to an invalid chain request: a chain response whose `error` has the fields of other errors."""
    response = response_of(rejection(error))
    retry = {"Retry-After": response.headers["Retry-After"]} if "Retry-After" in response.headers else {}
    return JSONResponse(refused_chain(error).model_dump(mode="json"), response.status_code if retry else 422, retry)


def install(app: FastAPI) -> None:
    """Register handlers that answer every error of an application in this format."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        rejected = rejection(error)
        try:
            await record_rejection(request, rejected)
        except CantataError as busy:  # too many calls wait
            log.warning("audit_not_completed", path=request.scope["path"], error=str(busy))
        response = response_of(rejected)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    for kind in (CantataError, RedisFailure, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
