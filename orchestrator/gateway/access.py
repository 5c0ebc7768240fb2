"""Who may ask, and for whom: bearer tokens, each of one tenant; without tokens, programs of this machine but not web pages.

A browser cannot send a header with a WebSocket. So there a token may come as a subprotocol, of those that the client offers:
`Sec-WebSocket-Protocol: cantata, bearer.TOKEN`. It never stands in the address, which proxies and browsers write down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.errors import ConfigError, Fault
from orchestrator.formats.documents import parse
from orchestrator.gateway.faults import Refused
from orchestrator.models.values import JsonValue
from orchestrator.pages.origins import is_asked_here, other_page

SUBPROTOCOL = "cantata"
TOKEN_SUBPROTOCOL = "bearer."
PAGES = "/pages"
"""Where the run pages are."""
_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})

_TOKEN = re.compile(r"[A-Za-z0-9._~+-]{16,500}")


def is_open(path: str) -> bool:
    """Whether a path is answered to anyone: it tells nothing of any tenant."""
    return path in _OPEN_PATHS or is_page(path)


def is_page(path: str) -> bool:
    """Whether a path is of the run pages: the same files for everybody, which ask for the rest with the user's token."""
    return path == PAGES or path.startswith(f"{PAGES}/")


class Tokens:
    """Tokens and their tenants. Only digests of tokens are kept, so that the time of a search tells nothing about them."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = {_digest(token): tenant for token, tenant in tenants.items()}

    def __len__(self) -> int:
        return len(self._tenants)

    def tenant_of(self, token: str) -> str | None:
        """Whose token this is; None if it is nobody's."""
        digest = _digest(token)
        found: str | None = None
        for known, tenant in self._tenants.items():
            if compare_digest(known, digest):
                found = tenant
        return found


def read_tokens(text: str, source: str) -> Tokens:
    """Tokens from a JSON or YAML mapping of token → tenant. A ConfigError lists all faults, and shows no token."""
    try:
        data = parse(text, source=source).data
    except ConfigError as error:
        lines = [Fault("this is neither JSON nor YAML", line=fault.line) for fault in error.faults]  # their messages may quote a token
        raise ConfigError(lines, source=source) from None
    if not isinstance(data, dict) or not data:
        raise ConfigError("expected a mapping of token to tenant, with at least one token", source=source)
    tenants = [_entry(number, token, tenant) for number, (token, tenant) in enumerate(data.items(), 1)]
    faults = [each for each in tenants if isinstance(each, Fault)]
    if faults:
        raise ConfigError(faults, source=source)
    return Tokens(dict(each for each in tenants if not isinstance(each, Fault)))


def read_tokens_file(path: Path) -> Tokens:
    """The tokens in a file."""
    try:
        return read_tokens(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"this file of tokens cannot be read: {error}", source=str(path)) from None


class Access:
    """Lets requests in that may ask, and notes the tenant they ask for."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if self._tokens is None:
                _check_no_page(headers, scope["path"])
                tenant = ""
            else:
                tenant = "" if is_open(scope["path"]) else _tenant(self._tokens, headers, scope)
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def _tenant(tokens: Tokens, headers: Headers, scope: Scope) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        offered = (each for each in scope.get("subprotocols", ()) if each.startswith(TOKEN_SUBPROTOCOL))
        token = next(offered, "").removeprefix(TOKEN_SUBPROTOCOL)
    tenant = tokens.tenant_of(token.strip()) if token else None
    if tenant is None:
        said = "this token is not known here" if token else "a token is needed: send `Authorization: Bearer TOKEN`"
        raise Refused(401, said)
    return tenant


def _check_no_page(headers: Headers, path: str) -> None:
    """Refuse what a browser sends for a page that is not ours: its own address stands in Origin, or, after DNS rebinding, in Host.

    Without tokens, anything else would let any page that is open on this machine have agents run. Other pages may lead to ours.
    """
    host = headers.get("host", "")
    if not is_asked_here(host):
        raise Refused(403, f"the gateway without tokens is asked by this machine's names only, such as localhost, not {host!r}")
    other = None if is_page(path) else other_page(headers)
    if other is not None:
        raise Refused(403, f"{other} may not ask the gateway; start it with tokens, and give the page one")


def _entry(number: int, token: str, tenant: JsonValue) -> tuple[str, str] | Fault:
    if not _TOKEN.fullmatch(token):
        return Fault(f"token {number} is not 16 to 500 letters, digits and `._~+-`; `openssl rand -hex 32` makes one")
    if not isinstance(tenant, str) or len(tenant) > 200 or not tenant.isprintable():
        return Fault(f"the tenant of token {number} is not a name of up to 200 characters")
    return token, tenant


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
