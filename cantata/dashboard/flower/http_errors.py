"""HTTP error responses of the run pages in Flower: a status, and the body `{"error": {"code", "message", "faults"}}` of the gateway."""

from __future__ import annotations

import json
from http.client import responses

from tornado.web import HTTPError

from cantata.dashboard.http.rejections import DEFAULT_CODES, rejection_of


class PageRequestRejected(HTTPError):
    """A request of the run pages that Flower rejects."""

    def __init__(self, status: int, message: str, *, code: str = "") -> None:
        super().__init__(status)
        self.message = message
        self.code = code or DEFAULT_CODES.get(status, "error")


def page_rejection(error: BaseException | None) -> PageRequestRejected | None:
    """Return an error as a rejection; None for an unexpected error."""
    if isinstance(error, PageRequestRejected):
        return error
    if isinstance(error, HTTPError):
        return PageRequestRejected(error.status_code, error.get_message() or responses.get(error.status_code, "rejected"))
    found = rejection_of(error)
    return found and PageRequestRejected(found.status, found.message, code=found.code)


def body_of(error: BaseException | None) -> str:
    """Return the JSON body for an error; the details of an unexpected error are not sent."""
    rejected = page_rejection(error) or PageRequestRejected(500, "an unexpected error of Flower; see its log", code="internal")
    return json.dumps({"error": {"code": rejected.code, "message": rejected.message, "faults": []}})
