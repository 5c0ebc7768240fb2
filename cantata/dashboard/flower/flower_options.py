"""Flower's options, from where Flower takes them: the environment, then flowerconfig.py, then the command line; with defaults of ours."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import flower
from flower import command
from flower.options import options
from tornado.options import Error

from cantata.dashboard.pages.origins import is_loopback
from cantata.errors import ConfigError
from cantata.settings import PLACEHOLDERS
from cantata.settings import settings as environment

TESTED = "2.2"
DEFAULTS: Mapping[str, object] = {"address": "127.0.0.1", "logging": "none"}
"""Where ours differ from Flower's, which listens on every address and changes how this process logs."""


def settle(arguments: Sequence[str], *, basic_auth_file: str | None = None) -> None:
    """Set the options of this process. Raises ConfigError, also for an address that others reach without a password."""
    _check_names(arguments)
    for name, value in DEFAULTS.items():
        setattr(options, name, value)
    if os.environ.get("FLOWER_PORT", "").startswith("tcp://"):
        del os.environ["FLOWER_PORT"]  # Kubernetes sets it so, for a service that is called flower
    with _told():
        command.apply_env_options()
        command.apply_options("flower", list(arguments))
        if basic_auth_file is not None:
            options.basic_auth = read_basic_auth(Path(basic_auth_file))
        command.extract_settings()
    command.setup_logging()
    _check_auth()


def has_passwords() -> bool:
    """Whether people say who they are by a name and a password, with each request."""
    return bool(options.basic_auth)


def has_sessions() -> bool:
    """Whether they sign in with a provider, and their browser shows a cookie then."""
    return bool(options.auth)


def is_guarded() -> bool:
    """Whether people must say who they are at all."""
    return has_passwords() or has_sessions()


def is_read_only() -> bool:
    """Whether nothing may be changed from here."""
    return bool(options.read_only)


def is_local() -> bool:
    """Whether a browser that asks names this machine: so unless it is guarded, or a proxy stands before its socket."""
    return not is_guarded() and not options.unix_socket


def prefix() -> str:
    """What stands before the path of every page, such as `/flower`; or nothing."""
    return f"/{stripped}" if (stripped := (options.url_prefix or "").strip("/")) else ""


def read_basic_auth(path: Path) -> list[str]:
    """The lines `name:password` of a file. Raises ConfigError, which shows none of them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"this file of names and passwords cannot be read: {error}", source=str(path)) from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise ConfigError("expected lines `name:password`, at least one", source=str(path))
    return found


def version_warning() -> str | None:
    """What is to be said of a Flower that this was not tested with."""
    if flower.__version__.startswith(f"{TESTED}."):
        return None
    return f"this is Flower {flower.__version__}, and the run pages in it were tested with {TESTED}; if they fail, the gateway has them too"


def _check_names(arguments: Sequence[str]) -> None:
    known = sorted(options.as_dict())
    for each in arguments:
        name = each.lstrip("-").partition("=")[0].replace("-", "_")
        if not each.startswith("--") or name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean --{near[0]}=...?" if near else "; its options are written --name=value"
            raise ConfigError(f"Flower has no option {each!r}{meant}", source="flower")


def _check_auth() -> None:
    for entry in options.basic_auth or ():
        name, _, password = entry.partition(":")
        if password in PLACEHOLDERS:
            raise ConfigError(f"the password of {name!r} in basic_auth is the word of the example; put your own there", source="flower")
        if not name or not password:  # Flower would take an empty entry for a password that anybody knows
            raise ConfigError("each entry of basic_auth is name:password, neither of them empty", source="flower")
    is_reached_here_only = options.unix_socket or is_loopback(options.address) or environment().published_on_loopback
    if not is_guarded() and not is_reached_here_only:
        raise ConfigError(
            f"{options.address or 'every address'!r} can be reached from other machines, so Flower must ask who comes: name a file "
            "of name:password lines with --basic-auth-file, or set up --auth; or leave --host out to be reached from this machine only",
            source="flower",
        )


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (Error, ValueError, TypeError) as error:
        raise ConfigError(f"an option cannot be read: {error}", source="flower") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename!r}, which --conf names, does not exist", source="flower") from error
    except SystemExit as error:
        raise ConfigError("Flower refuses its options; the line above says why", source="flower") from error
