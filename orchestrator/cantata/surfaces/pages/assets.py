"""Files of the run pages: one document, and the scripts and styles that it loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Sent with the document and with every file."""

CACHE = "no-cache"  # browsers revalidate it at each use, by its ETag

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "md": "text/plain; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

_STATIC = files("cantata.surfaces.pages") / "static"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file with its headers."""

    body: bytes
    media_type: str
    etag: str


def index(*, api: str, base: str, flower: str = "", trace: str = "") -> Asset:
    """Return the document of every page, with the addresses of the API, the pages and Flower, without a trailing slash, and of traces."""
    text = _files()["index.html"].body.decode()
    for name, value in (("api", api), ("base", base), ("flower", flower)):
        text = text.replace("{{" + name + "}}", escape(value.rstrip("/")))
    text = text.replace("{{trace}}", escape(trace))
    return _asset(text.encode(), "index.html")


def asset(path: str) -> Asset | None:
    """Return a file by its path in `static/`, such as `app.js` or `vendor/dagre.js`; None if there is none."""
    return _files().get(path) if path != "index.html" else None


@cache
def _files() -> dict[str, Asset]:
    """Return all files by path, read once: a long-lived process must not mix them with those of a version that is installed later."""
    return {path: _asset(file.read_bytes(), path) for path, file in _found(_STATIC, "")}


def _found(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _found(each, f"{path}{each.name}/")
        elif each.name.rpartition(".")[2] in MEDIA_TYPES:
            yield f"{path}{each.name}", each


def _asset(body: bytes, path: str) -> Asset:
    return Asset(body, MEDIA_TYPES[path.rpartition(".")[2]], f'"{sha256(body).hexdigest()[:32]}"')
