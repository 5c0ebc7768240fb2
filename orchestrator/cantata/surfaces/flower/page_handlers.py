"""Handlers of the run pages, and the base of those of their API; access is that of Flower's own pages."""

from __future__ import annotations

import math
from http.client import responses
from typing import TYPE_CHECKING, Any

from tornado import web

from cantata.client.auditing import ANONYMOUS, Actor, act_as
from cantata.settings import settings
from cantata.surfaces.flower import flower_options
from cantata.surfaces.flower.page_service import PageService
from cantata.surfaces.flower.passwords import user_in
from cantata.surfaces.http.origins import foreign_page, is_local_request
from cantata.surfaces.http.rejections import RequestRejected, rejection_of
from cantata.surfaces.pages import assets

if TYPE_CHECKING:  # Flower has no types; its handler is Tornado's, with Flower's authentication
    from tornado.web import RequestHandler as BaseHandler

    class Metrics(BaseHandler):
        """Flower's handler of its metrics."""

        async def get(self) -> None:
            """Answer with them."""
else:
    from flower.views import BaseHandler
    from flower.views.monitor import Metrics


class RunPageHandler(BaseHandler):
    """Base of all handlers: has the service, and our headers instead of those that open Flower's API to other pages."""

    def initialize(self, service: PageService) -> None:
        self.service = service

    def set_default_headers(self) -> None:
        for name, value in assets.HEADERS.items():
            self.set_header(name, value)


class MetricsHandler(Metrics):
    """GET /metrics: Flower's own, behind its login. They name all workers and tasks, and Flower itself shows them to anyone."""

    async def get(self) -> None:
        if (
            not self.current_user
        ):  # of a provider: Prometheus cannot follow a redirect to it. With a password this raises 401 itself
            raise web.HTTPError(401)
        await super().get()


class RedirectHandler(RunPageHandler):
    """GET /runs: redirects to /runs/."""

    @web.authenticated
    def get(self) -> None:
        self.redirect(self.reverse_url("runs"))


class DocumentHandler(RunPageHandler):
    """GET the document of every page, which has no data."""

    @web.authenticated
    def get(self) -> None:
        prefix = flower_options.prefix()
        # Without a scheme: behind a proxy only the browser knows it.
        found = assets.index(
            api=f"{prefix}/runs/api",
            base=f"{prefix}/runs",
            flower=f"//{self.request.host}{prefix}",
            trace=settings().trace_url or "",
        )
        _send(self, found)


class AssetHandler(RunPageHandler):
    """GET scripts and styles of the document; public, as Flower's own are."""

    def get(self, path: str) -> None:
        found = assets.asset(path)
        if found is None:
            raise web.HTTPError(404)
        _send(self, found)


def _send(handler: BaseHandler, asset: assets.Asset) -> None:
    """Answer with a file; Tornado adds the ETag, and answers 304 if the browser has the file."""
    handler.set_header("Content-Type", asset.media_type)
    handler.set_header("Cache-Control", assets.CACHE)
    handler.finish(asset.body)


class ApiHandler(RunPageHandler):
    """Base of the handlers of the JSON API; checks that the request is authorized."""

    def prepare(self) -> None:
        if flower_options.is_local() and not is_local_request(self.request.headers.get("Host", "")):
            raise RequestRejected(
                403, "without passwords Flower answers only to names of this machine, such as localhost"
            )
        self._check_page()
        if not self.current_user:  # Flower's attribute; with basic authentication it raises 401 itself
            raise RequestRejected(401, "sign in to Flower again: reload this page", code="signed_out")
        user = self.current_user if isinstance(self.current_user, str) else ""  # true without a provider's account
        if flower_options.has_passwords():
            user = user or user_in(self.request.headers.get("Authorization", ""))
        act_as(Actor(name=user or ANONYMOUS, via="flower", address=self.request.remote_ip or "", verified=bool(user)))
        if self.request.method == "POST" and flower_options.is_read_only():
            raise RequestRejected(403, "this Flower is read-only", code="read_only")

    def check_xsrf_cookie(self) -> None:
        """Reject requests of other pages by their headers. Flower's cookie is not used: our pages have no form for it."""
        self._check_page()
        names_page = any(name in self.request.headers for name in ("Origin", "Sec-Fetch-Site", "Authorization"))
        if flower_options.has_sessions() and not names_page:
            raise RequestRejected(403, "a browser that does not name the requesting page may change nothing")

    def _check_page(self) -> None:
        if (other := foreign_page({name.lower(): value for name, value in self.request.headers.items()})) is not None:
            raise RequestRejected(403, f"{other} may not use the API of the run pages")

    def answer(self, body: str | dict[str, Any], status: int = 200) -> None:
        """Answer with JSON."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "application/json")
        self.finish(body)

    def write_error(self, status_code: int, **more: Any) -> None:
        rejected = _rejection(more.get("exc_info", (None, None))[1])
        if rejected.status == 401 and flower_options.has_passwords():
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')  # the browser asks for the password again
        if rejected.retry_after_s:
            self.set_header("Retry-After", str(math.ceil(rejected.retry_after_s)))
        self.answer(rejected.body.model_dump_json(), rejected.status)

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log unexpected errors only."""
        if rejection_of(error) is None:
            super().log_exception(kind, error, trace)


def _rejection(error: BaseException | None) -> RequestRejected:
    """Return an error as a rejection; the details of an unexpected error are not sent."""
    if isinstance(error, web.HTTPError):
        return RequestRejected(error.status_code, error.get_message() or responses.get(error.status_code, "rejected"))
    return rejection_of(error) or RequestRejected(500, "an unexpected error of Flower; see its log", code="internal")


class UnknownPathHandler(ApiHandler):
    """Any other path of the API."""

    def prepare(self) -> None:
        super().prepare()
        raise RequestRejected(404, "the API of the run pages has no such path")
