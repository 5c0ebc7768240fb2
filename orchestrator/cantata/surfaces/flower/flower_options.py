"""Flower's options, from its sources (the environment, then flowerconfig.py, then the command line), with our defaults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import flower
from flower import command
from flower.options import options
from tornado.options import Error

from cantata.errors import ConfigError
from cantata.settings import PLACEHOLDERS
from cantata.settings import settings as environment
from cantata.surfaces.http.origins import is_loopback
from cantata.text.suggestions import nearest

TESTED = "2.2"
DEFAULTS: Mapping[str, object] = {
    "address": "127.0.0.1",
    "logging": "none",
    "tasks_columns": "name,uuid,args,state,received,runtime,worker",
}
"""Our defaults: Flower would listen on every address, change the logging of this process, and list tasks without run and tool."""


def set_options(arguments: Sequence[str], *, basic_auth_file: str | None = None) -> None:
    """Set the options of this process. Raises ConfigError, also for an address that other machines reach without a password."""
    _check_names(arguments)
    for name, value in DEFAULTS.items():
        setattr(options, name, value)
    if os.environ.get("FLOWER_PORT", "").startswith("tcp://"):
        del os.environ["FLOWER_PORT"]  # Kubernetes sets it to this for a service that is called flower
    with _as_config_errors():
        command.apply_env_options()
        command.apply_options("flower", list(arguments))
        if basic_auth_file is not None:
            options.basic_auth = read_basic_auth(Path(basic_auth_file))
        command.extract_settings()
    command.setup_logging()
    _check_auth()


def has_passwords() -> bool:
    """Return whether users authenticate with a name and a password in each request."""
    return bool(options.basic_auth)


def has_sessions() -> bool:
    """Return whether users sign in with a provider, and their browser sends a cookie."""
    return bool(options.auth)


def is_guarded() -> bool:
    """Return whether users must authenticate."""
    return has_passwords() or has_sessions()


def is_read_only() -> bool:
    """Return whether Flower may change nothing."""
    return bool(options.read_only)


def is_local() -> bool:
    """Return whether requests must name this machine: unless users authenticate, or a proxy is in front of its socket."""
    return not is_guarded() and not options.unix_socket


def prefix() -> str:
    """Return the prefix of every path, such as `/flower`; empty if there is none."""
    return f"/{stripped}" if (stripped := (options.url_prefix or "").strip("/")) else ""


def read_basic_auth(path: Path) -> list[str]:
    """Return the lines `name:password` of a file. Raises ConfigError, which quotes none of them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of names and passwords cannot be read: {error}", source=str(path)) from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise ConfigError("expected lines `name:password`, at least one", source=str(path))
    return found


def version_warning() -> str | None:
    """Return a warning for a version of Flower that was not tested; None for one that was."""
    if flower.__version__.startswith(f"{TESTED}."):
        return None
    return f"Flower {flower.__version__} is not the tested version {TESTED}; if the run pages in it fail, use those of the gateway"


def _check_names(arguments: Sequence[str]) -> None:
    known = sorted(options.as_dict())
    for each in arguments:
        name = each.lstrip("-").partition("=")[0].replace("-", "_")
        if not each.startswith("--") or name not in known:
            near = nearest(name, known)
            meant = f"; did you mean --{near}=...?" if near else "; its options are written --name=value"
            raise ConfigError(f"Flower has no option {each!r}{meant}", source="flower")


def _check_auth() -> None:
    for entry in options.basic_auth or ():
        name, _, password = entry.partition(":")
        if password in PLACEHOLDERS:
            raise ConfigError(
                f"the password of {name!r} in basic_auth is that of the example; set your own", source="flower"
            )
        if not name or not password:  # Flower would take an empty entry for a password that anybody knows
            raise ConfigError(
                "each entry of basic_auth must be name:password, with neither of them empty", source="flower"
            )
    is_reached_here_only = options.unix_socket or is_loopback(options.address) or environment().published_on_loopback
    if not is_guarded() and not is_reached_here_only:
        raise ConfigError(
            f"{options.address or 'every address'!r} can be reached from other machines, so Flower needs authentication: name a file "
            "of name:password lines with --basic-auth-file, or set up --auth; or leave --host out to be reached from this machine only",
            source="flower",
        )


@contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except (Error, ValueError, TypeError) as error:
        raise ConfigError(f"an option cannot be read: {error}", source="flower") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename!r}, which --conf names, does not exist", source="flower") from error
    except SystemExit as error:
        raise ConfigError("Flower refuses its options; the line above says why", source="flower") from error
