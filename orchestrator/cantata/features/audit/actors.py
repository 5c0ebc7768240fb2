"""Actors: people and programs that act on runs and on the fleet, as the audit log and events name them."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import Field

from cantata.values import JsonValue, Value

MAX_NAME_CHARS = 200
ANONYMOUS = "anonymous"
"""Name of whoever calls a gateway without tokens, or a Flower without passwords."""


class Actor(Value):
    """A person or program that acts."""

    name: str = Field(description="its name: that of the token; on the command line and in programs `user@host`")
    via: str = Field(default="python", description="the way: http, cli, python or flower")
    address: str = Field(default="", description="the address of the client; empty if it is on this machine")
    tenant: str = Field(default="", description="the tenant of its token")
    verified: bool = Field(default=False, description="whether a token or password proves the name; else it is a claim")

    def named(self, name: str) -> Actor:
        """Return the actor under a name that it gives itself, which is a claim, unless it is its own."""
        given = one_line(name)
        return self if given in ("", self.name) else self.model_copy(update={"name": given, "verified": False})

    def signature(self) -> dict[str, JsonValue]:
        """Return the fields of an event that say who acted."""
        return {"by": self.name, "via": self.via, "verified": self.verified}


_CURRENT: ContextVar[Actor | None] = ContextVar("cantata_actor", default=None)


def current_actor() -> Actor:
    """Return who acts here: the one of `acting_as`, else the user who runs this process."""
    return _CURRENT.get() or local_actor()


def local_actor(via: str = "python") -> Actor:
    """Return the user who runs this process, on this machine: a claim, since nothing proves it."""
    return Actor(name=_user_at_host(), via=via)


@contextmanager
def acting_as(actor: Actor) -> Iterator[Actor]:
    """Act as somebody in the block; tasks and coroutines that start in it do too."""
    before = _CURRENT.set(actor)
    try:
        yield actor
    finally:
        _CURRENT.reset(before)


def act_as(actor: Actor) -> None:
    """Act as somebody from here on: for a server, where a request comes in."""
    _CURRENT.set(actor)


def one_line(text: str, most: int = MAX_NAME_CHARS) -> str:
    """Return a text as one line of printable characters, cut at a length."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * most]).split())[:most]


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    return one_line(f"{user or 'unknown'}@{socket.gethostname() or 'unknown'}")
