"""The run pages and their API as Flower's handlers: whoever may see Flower's pages may see these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tornado import web

from cantata.dashboard.flower import flower_options
from cantata.dashboard.flower.blocking_calls import Desk
from cantata.dashboard.flower.http_errors import Refused, body_of, refusal
from cantata.dashboard.pages import assets
from cantata.dashboard.pages.origins import is_asked_here, other_page

if TYPE_CHECKING:  # Flower carries no types, and its handler is Tornado's with Flower's ways of saying who somebody is
    from tornado.web import RequestHandler as BaseHandler
else:
    from flower.views import BaseHandler


class Door(BaseHandler):
    """What all of ours have: the desk, and headers of our own instead of those that open Flower's API to other pages."""

    def initialize(self, desk: Desk) -> None:
        self.desk = desk

    def set_default_headers(self) -> None:
        for name, value in assets.HEADERS.items():
            self.set_header(name, value)


class Moved(Door):
    """`/runs`, which is `/runs/`."""

    @web.authenticated
    def get(self) -> None:
        self.redirect(self.reverse_url("runs"))


class Document(Door):
    """The one document of all pages; it tells nothing by itself."""

    @web.authenticated
    def get(self) -> None:
        prefix = flower_options.prefix()
        # Without a scheme: behind a proxy only the browser knows it.
        found = assets.index(api=f"{prefix}/runs/api", base=f"{prefix}/runs", flower=f"//{self.request.host}{prefix}")
        send(self, found)


class Asset(Door):
    """The scripts and styles of the document. Open, as Flower's own are."""

    def get(self, path: str) -> None:
        found = assets.asset(path)
        if found is None:
            raise web.HTTPError(404)
        send(self, found)


def send(handler: BaseHandler, asset: assets.Asset) -> None:
    """Answer with a file; Tornado adds the ETag, and answers 304 to who has it."""
    handler.set_header("Content-Type", asset.media_type)
    handler.set_header("Cache-Control", assets.CACHE)
    handler.finish(asset.body)


class Api(Door):
    """Answers in JSON, and only to who may ask."""

    def prepare(self) -> None:
        if flower_options.is_local() and not is_asked_here(self.request.headers.get("Host", "")):
            raise Refused(403, "Flower without passwords is asked by this machine's names only, such as localhost")
        self._check_page()
        if not self.current_user:  # Flower's own word; with basic authentication it raises 401 itself
            raise Refused(401, "sign in to Flower again: load this page anew", code="signed_out")
        if self.request.method == "POST" and flower_options.is_read_only():
            raise Refused(403, "this Flower is read-only", code="read_only")

    def check_xsrf_cookie(self) -> None:
        """Refuse what another page sends. Flower's cookie is not asked for: our pages have no form that could hold it."""
        self._check_page()
        told = any(name in self.request.headers for name in ("Origin", "Sec-Fetch-Site", "Authorization"))
        if flower_options.has_sessions() and not told:
            raise Refused(403, "a browser that does not say which page asks may change nothing")

    def _check_page(self) -> None:
        if (other := other_page({name.lower(): value for name, value in self.request.headers.items()})) is not None:
            raise Refused(403, f"{other} may not ask for runs")

    def answer(self, body: str | dict[str, Any], status: int = 200) -> None:
        """Answer with JSON."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "application/json")
        self.finish(body)

    def write_error(self, status_code: int, **more: Any) -> None:
        error = more.get("exc_info", (None, None))[1]
        refused = refusal(error)
        if refused is not None and refused.status_code == 401 and flower_options.has_passwords():
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')  # the browser asks for the password again
        self.answer(body_of(error), refused.status_code if refused else 500)


class Unknown(Api):
    """Any other path of the API."""

    def prepare(self) -> None:
        super().prepare()
        raise Refused(404, "the API of the run pages has no such path")
