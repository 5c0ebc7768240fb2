"""Throttle of failed passwords of Flower's basic authentication, which Flower itself checks without a limit.

Passwords may be guessed, unlike tokens. So beyond the bound of an address and name no password is tried any more, except those that have
been right before in this process: who is signed in stays signed in, whatever others of the same address try.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Sequence
from hmac import compare_digest

from tornado.web import RequestHandler

from cantata.surfaces.http.failed_logins import FailedLogins
from cantata.surfaces.http.rejections import RequestRejected


class PasswordThrottle:
    """Decides which passwords may be tried now. Its memory is bounded by the accounts and by that of `FailedLogins`."""

    def __init__(self, accounts: Sequence[str], failed: FailedLogins | None = None) -> None:
        """`accounts` are Flower's, as `name:password`."""
        self._accounts = [account.encode() for account in accounts]
        self._signed_in: list[bytes] = []
        self._failed = failed or FailedLogins()

    def wait_s(self, address: str, authorization: str) -> float:
        """Return in how many seconds a request may try its password; 0 if it may now, or has none. A wrong one is counted."""
        given = _credentials(authorization)
        if given is None or not self._accounts or _is_one_of(given, self._signed_in):
            return 0.0
        user = given.partition(b":")[0].decode("utf-8", "replace")
        if wait_s := self._failed.wait_s(address, user):
            return wait_s
        if _is_one_of(given, self._accounts):
            self._signed_in.append(given)
            return 0.0
        return self._failed.record(address, user)


class ThrottledHandler(RequestHandler):
    """Answers a request whose password is not tried."""

    def initialize(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def prepare(self) -> None:
        message = f"too many wrong passwords; try again in {math.ceil(self._wait_s)} s"
        rejected = RequestRejected(429, message, code="too_many_failures", retry_after_s=self._wait_s)
        self.set_status(rejected.status)
        self.set_header("Retry-After", str(math.ceil(self._wait_s)))
        self.set_header("Content-Type", "application/json")
        self.finish(rejected.body.model_dump_json())


def user_in(authorization: str) -> str:
    """Return the name in a header whose password was checked; empty if it has none."""
    return (_credentials(authorization) or b"").partition(b":")[0].decode("utf-8", "replace")


def _credentials(authorization: str) -> bytes | None:
    """Return `name:password` of a header; None if it has none, and Flower refuses it."""
    kind, _, text = authorization.partition(" ")
    try:
        found = b64decode(text.strip(), validate=True) if kind == "Basic" else b""
    except (binascii.Error, ValueError):
        return None
    return found if b":" in found else None


def _is_one_of(given: bytes, known: Sequence[bytes]) -> bool:
    """Return whether credentials are known, in a time that does not depend on which."""
    return sum(compare_digest(given, each) for each in known) > 0
