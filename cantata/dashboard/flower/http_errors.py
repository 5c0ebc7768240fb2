"""What goes wrong, as the pages get it: `{"error": {"code", "message"}}` and an HTTP status, as from the gateway."""

from __future__ import annotations

import json
from http.client import responses

from tornado.web import HTTPError

from cantata.errors import ConfigError, UnavailableError, UnknownRunError
from cantata.state.redis.connection import RedisFailure

CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class Refused(HTTPError):
    """A request that is not answered as asked."""

    def __init__(self, status: int, message: str, *, code: str = "") -> None:
        super().__init__(status)
        self.message = message
        self.code = code or CODES.get(status, "error")


def refusal(error: BaseException | None) -> Refused | None:
    """The refusal that an error means; None for what nobody foresaw."""
    match error:
        case Refused():
            return error
        case HTTPError():
            return Refused(error.status_code, error.get_message() or responses.get(error.status_code, "refused"))
        case ConfigError(code="quota_exceeded" | "session_full"):
            return Refused(429, str(error), code=error.code)
        case ConfigError():
            return Refused(422, str(error), code=error.code)
        case UnknownRunError():
            return Refused(404, str(error), code="unknown_run")
        case UnavailableError() | RedisFailure():
            return Refused(503, str(error), code="unavailable")
    return None


def body_of(error: BaseException | None) -> str:
    """A refusal as JSON."""
    refused = refusal(error) or Refused(500, "this should not happen; Flower's log says more", code="internal")
    return json.dumps({"error": {"code": refused.code, "message": refused.message, "faults": []}})
