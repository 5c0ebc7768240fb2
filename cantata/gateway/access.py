"""Bearer tokens, each of one tenant and with rights of its own; without tokens, programs of this machine but not web pages.

A browser cannot send a header with a WebSocket. So there a token may come as a subprotocol, of those that the client offers:
`Sec-WebSocket-Protocol: cantata, bearer.TOKEN`. It never stands in the address, which proxies and browsers write down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cantata.config.documents import Document, parse
from cantata.config.faults import faults_of
from cantata.dashboard.pages.origins import is_asked_here, other_page
from cantata.errors import ConfigError, Fault
from cantata.gateway.grants import UNLIMITED, Grant
from cantata.gateway.http_errors import RequestRejected
from cantata.models.values import JsonValue

SUBPROTOCOL = "cantata"
TOKEN_SUBPROTOCOL = "bearer."
PAGES = "/pages"
"""Where the run pages are."""
_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})

NO_RIGHTS = Grant(tenant="", scopes=[])
"""The rights of whoever asks for an open path: it shows nothing of any tenant."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+-]{16,500}")


def is_open(path: str) -> bool:
    """Whether a path is answered to anyone: it tells nothing of any tenant."""
    return path in _OPEN_PATHS or is_page(path)


def is_page(path: str) -> bool:
    """Whether a path is of the run pages: the same files for everybody, which ask for the rest with the user's token."""
    return path == PAGES or path.startswith(f"{PAGES}/")


class Tokens:
    """Tokens and their rights. Only digests of tokens are kept, so that the time of a search tells nothing about them."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = {_digest(token): _named(grant, token) for token, grant in grants.items()}

    def __len__(self) -> int:
        return len(self._grants)

    def grant_of(self, token: str) -> Grant | None:
        """Return the rights of a token; None if it is not known."""
        digest = _digest(token)
        found: Grant | None = None
        for known, grant in self._grants.items():
            if compare_digest(known, digest):
                found = grant
        return found


def read_tokens(text: str, source: str) -> Tokens:
    """Tokens from a JSON or YAML mapping of token → tenant or rights. A ConfigError lists all faults, and shows no token."""
    try:
        data = parse(text, source=source).data
    except ConfigError as error:
        lines = [Fault("this is neither JSON nor YAML", line=fault.line) for fault in error.faults]  # their messages may quote a token
        raise ConfigError(lines, source=source) from None
    if not isinstance(data, dict) or not data:
        raise ConfigError("expected a mapping of token to tenant or rights, with at least one token", source=source)
    grants: dict[str, Grant] = {}
    faults: list[Fault] = []
    for number, (token, said) in enumerate(data.items(), 1):
        try:
            grants[token] = _grant(number, token, said)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults, source=source)
    return Tokens(grants)


def read_tokens_file(path: Path) -> Tokens:
    """The tokens in a file."""
    try:
        return read_tokens(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"this file of tokens cannot be read: {error}", source=str(path)) from None


class Access:
    """Lets requests in that may ask, and notes the rights and the tenant they ask with."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if self._tokens is None:
                _check_no_page(headers, scope["path"])
                grant = UNLIMITED
            else:
                grant = NO_RIGHTS if is_open(scope["path"]) else _grant_in(self._tokens, headers, scope)
            scope.setdefault("state", {}).update(grant=grant, tenant=grant.tenant)
        await self._app(scope, receive, send)


def _grant_in(tokens: Tokens, headers: Headers, scope: Scope) -> Grant:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        offered = (each for each in scope.get("subprotocols", ()) if each.startswith(TOKEN_SUBPROTOCOL))
        token = next(offered, "").removeprefix(TOKEN_SUBPROTOCOL)
    grant = tokens.grant_of(token.strip()) if token else None
    if grant is None:
        said = "this token is not known here" if token else "a token is needed: send `Authorization: Bearer TOKEN`"
        raise RequestRejected(401, said)
    return grant


def _check_no_page(headers: Headers, path: str) -> None:
    """Refuse what a browser sends for a page that is not ours: its own address stands in Origin, or, after DNS rebinding, in Host.

    Without tokens, anything else would let any page that is open on this machine have agents run. Other pages may lead to ours.
    """
    host = headers.get("host", "")
    if not is_asked_here(host):
        raise RequestRejected(403, f"the gateway without tokens is asked by this machine's names only, such as localhost, not {host!r}")
    other = None if is_page(path) else other_page(headers)
    if other is not None:
        raise RequestRejected(403, f"{other} may not ask the gateway; start it with tokens, and give the page one")


def _grant(number: int, token: str, said: JsonValue) -> Grant:
    """The rights that stand behind a token: a tenant, or a mapping. Raises ConfigError, without the token."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"token {number} is not 16 to 500 letters, digits and `._~+-`; `openssl rand -hex 32` makes one")
    if isinstance(said, dict) and any(map(_TOKEN.fullmatch, said)):  # known keys are shorter
        raise ConfigError(f"among the rights of token {number} is a key that looks like a token; each token stands at the top")
    document = Document(said if isinstance(said, dict) else {"tenant": said})
    try:
        grant = Grant.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError([Fault(fault.message, f"token {number}: {fault.where}") for fault in faults_of(error, document, Grant)]) from None
    if not (grant.tenant + grant.name).isprintable():
        raise ConfigError(f"tenant and name of token {number} are texts that can be printed")
    return grant


def _named(grant: Grant, token: str) -> Grant:
    """A grant with a name, which is recorded with runs; eight digits of its digest tell nothing of a token."""
    return grant if grant.name else grant.model_copy(update={"name": f"token-{_digest(token).hex()[:8]}"})


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
