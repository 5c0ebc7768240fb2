"""Access by bearer tokens, each of one tenant and with its own rights; without tokens, by local programs but not by web pages.

A browser cannot send an Authorization header with a WebSocket. There a token may be one of the subprotocols that the client offers:
`Sec-WebSocket-Protocol: cantata, bearer.TOKEN`. A token is never part of a URL, since proxies and browsers log those.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

import structlog
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cantata.client.auditing import ANONYMOUS, Actor, act_as
from cantata.config.documents import Document, parse
from cantata.config.faults import faults_of
from cantata.errors import ConfigError, Fault
from cantata.surfaces.gateway.grants import UNLIMITED, Grant
from cantata.surfaces.http.blocking_calls import CALLER
from cantata.surfaces.http.failed_logins import FailedLogins
from cantata.surfaces.http.origins import foreign_page, is_local_request
from cantata.surfaces.http.rejections import RequestRejected
from cantata.values import JsonValue

log = structlog.get_logger(__name__)

POLL_S = 0.5  # between two looks at the file of tokens
SUBPROTOCOL = "cantata"
TOKEN_SUBPROTOCOL = "bearer."
PAGES = "/pages"
"""Path of the run pages."""
_PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/openapi.json"})

NO_RIGHTS = Grant(tenant="", scopes=[])
"""Rights of a request for a public path, which has no data of any tenant."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+-]{16,500}")


def is_public(path: str) -> bool:
    """Return whether a path is public: it has no data of any tenant."""
    return path in _PUBLIC_PATHS or is_page(path)


def is_page(path: str) -> bool:
    """Return whether a path belongs to the run pages: the same files for all, which call the API with the user's token."""
    return path == PAGES or path.startswith(f"{PAGES}/")


class Tokens:
    """Tokens and their rights. Only digests are kept, so that the time of a lookup reveals nothing about a token."""

    def __init__(self, grants: Mapping[str, Grant], *, path: Path | None = None) -> None:
        """Create them; `path` is the file that they were read from."""
        self._grants = {_digest(token): _named(grant, token) for token, grant in grants.items()}
        self.path = path

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

    def replace_by(self, others: Tokens) -> None:
        """Take the tokens and rights of `others` in place of all that are known."""
        self._grants = others._grants


def read_tokens(text: str, source: str) -> Tokens:
    """Return the tokens of a JSON or YAML mapping of token → tenant or rights. Raises ConfigError with all faults, without tokens."""
    try:
        data = parse(text, source=source).data
    except ConfigError as error:
        lines = [
            Fault("this is not valid JSON or YAML", line=fault.line) for fault in error.faults
        ]  # their messages may quote a token
        raise ConfigError(lines, source=source) from None
    if not isinstance(data, dict) or not data:
        raise ConfigError("expected a mapping of token to tenant or rights, with at least one token", source=source)
    grants: dict[str, Grant] = {}
    faults: list[Fault] = []
    for number, (token, rights) in enumerate(data.items(), 1):
        try:
            grants[token] = _grant(number, token, rights)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults, source=source)
    return Tokens(grants)


def read_tokens_file(path: Path) -> Tokens:
    """Return the tokens in a file. Raises ConfigError."""
    try:
        found = read_tokens(path.read_text("utf-8"), str(path))
        found.path = path
        return found
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of tokens cannot be read: {error}", source=str(path)) from None


async def reread_on_change(tokens: Tokens) -> None:
    """Keep tokens equal to their file, until cancelled. While the file has faults or is missing, those known before are valid."""
    if (path := tokens.path) is None:
        return
    served = seen = await asyncio.to_thread(_stat, path)
    while True:
        await asyncio.sleep(POLL_S)
        before, seen = seen, await asyncio.to_thread(_stat, path)
        if seen == served or seen != before:  # unchanged, or still being saved
            continue
        served = seen
        try:
            tokens.replace_by(await asyncio.to_thread(read_tokens_file, path))
            log.info("tokens_read", file=str(path), tokens=len(tokens))
        except ConfigError as error:
            log.error("tokens_not_read", error=str(error), note="those read before are valid until it is corrected")


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Access:
    """Rejects unauthenticated requests, and adds rights and tenant to the state of the others.

    Of unknown tokens it only answers so many a minute of one address with 401; the others get 429. A known token always gets in.
    """

    def __init__(self, app: ASGIApp, *, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens
        self._failed = FailedLogins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if self._tokens is None:
                _check_origin(headers, scope["path"])
                grant = UNLIMITED
            else:
                grant = NO_RIGHTS if is_public(scope["path"]) else self._grant_in(self._tokens, headers, scope)
            scope.setdefault("state", {}).update(grant=grant, tenant=grant.tenant)
            CALLER.set(None if is_public(scope["path"]) else grant.tenant)
            act_as(actor_of(grant, address_of(scope), has_token=self._tokens is not None))
        await self._app(scope, receive, send)

    def _grant_in(self, tokens: Tokens, headers: Headers, scope: Scope) -> Grant:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            offered = (each for each in scope.get("subprotocols", ()) if each.startswith(TOKEN_SUBPROTOCOL))
            token = next(offered, "").removeprefix(TOKEN_SUBPROTOCOL)
        if not token:
            raise RequestRejected(401, "a token is required: send `Authorization: Bearer TOKEN`")
        grant = tokens.grant_of(token.strip())
        if grant is None:
            if wait_s := self._failed.record(address_of(scope)):
                message = f"unknown token, the last of too many; retry in {wait_s:.0f} s, or at once with a known token"
                raise RequestRejected(429, message, code="too_many_failures", retry_after_s=wait_s)
            raise RequestRejected(401, "unknown token")
        return grant


def address_of(scope: Scope) -> str:
    """Return the address of a client; behind a trusted proxy the one that the proxy names."""
    return str(scope["client"][0]) if scope.get("client") else ""


def actor_of(grant: Grant, address: str, *, has_token: bool) -> Actor:
    """Return whoever sends a request. Without tokens nothing proves who that is."""
    return Actor(
        name=grant.name if has_token else ANONYMOUS,
        via="http",
        address=address,
        tenant=grant.tenant,
        verified=has_token and bool(grant.name),
    )


def _check_origin(headers: Headers, path: str) -> None:
    """Reject requests that a browser sends for another page: its address is in Origin, or, after DNS rebinding, in Host.

    Without tokens, any page that is open on this machine could otherwise start runs. Other pages may link to ours.
    """
    host = headers.get("host", "")
    if not is_local_request(host):
        raise RequestRejected(
            403, f"without tokens the gateway answers only to names of this machine, such as localhost, not {host!r}"
        )
    other = None if is_page(path) else foreign_page(headers)
    if other is not None:
        raise RequestRejected(403, f"{other} may not call the gateway; start it with tokens, and give the page one")


def _grant(number: int, token: str, rights: JsonValue) -> Grant:
    """Return the rights of a token: a tenant, or a mapping. Raises ConfigError, which does not quote the token."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"token {number} must be 16 to 500 letters, digits and `._~+-`; `openssl rand -hex 32` makes one"
        )
    if isinstance(rights, dict) and any(map(_TOKEN.fullmatch, rights)):  # known keys are shorter
        raise ConfigError(
            f"the rights of token {number} have a key that looks like a token; each token must be a key at the top level"
        )
    document = Document(rights if isinstance(rights, dict) else {"tenant": rights})
    try:
        grant = Grant.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(
            [Fault(fault.message, f"token {number}: {fault.where}") for fault in faults_of(error, document, Grant)]
        ) from None
    if grant.tenant and "operator" in grant.scopes:
        raise ConfigError(
            f"token {number} has the tenant {grant.tenant!r} and the scope 'operator', which is for all tenants; set its tenant to ''"
        )
    if not (grant.tenant + grant.name).isprintable():
        raise ConfigError(f"tenant and name of token {number} must be printable texts")
    return grant


def _named(grant: Grant, token: str) -> Grant:
    """Return a grant with a name, which is recorded with runs; eight digits of the digest reveal nothing about the token."""
    return grant if grant.name else grant.model_copy(update={"name": f"token-{_digest(token).hex()[:8]}"})


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
