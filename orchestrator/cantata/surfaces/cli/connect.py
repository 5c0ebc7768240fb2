"""Connections of commands to a service: one that runs already, or a stack of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from cantata.errors import UnavailableError
from cantata.operation import json_streams
from cantata.operation.embedded import Home, Stack, attach, status
from cantata.operation.extras import check_extras
from cantata.operation.project_folder import CONFIG_FILE, project_folder
from cantata.surfaces.cli.views.progress import show_progress

if TYPE_CHECKING:
    from cantata.flows.definitions import Definitions
    from cantata.surfaces.cli.connection import ServiceConnection


@contextmanager
def connect_or_start(*, config: str | Definitions | None = None, as_json: bool = False) -> Iterator[ServiceConnection]:
    """Connect to REDIS_URL, else to the stack that `submit up` keeps here, else to one started for this command."""
    url, given = find_service_url(), config if isinstance(config, str) else None
    if url is None and isinstance(config, str | None) and _names_tasks(config):
        from cantata.surfaces.cli.requests import check_tasks, load_definitions  # noqa: PLC0415  # as below

        config = load_definitions(config)
        check_tasks(config)
    stack = None if url else Stack.start(config=given, wait=False)
    with stack or nullcontext():
        with show_progress("connecting" if url else "starting"):
            from cantata.surfaces.cli.connection import ServiceConnection  # noqa: PLC0415  # Celery and pydantic take 0.9 s, in which the workers start

        with ServiceConnection(url, stack=stack, config=config, as_json=as_json) as connection:
            yield connection


def _names_tasks(config: str | None) -> bool:
    """Return whether the configuration's file may have tools that are Celery tasks, without the time that loading it takes."""
    path = Path(config or os.environ.get("CANTATA_CONFIG") or project_folder() / CONFIG_FILE)
    return path.is_file() and re.search(r"\btask[\"']?\s*:", path.read_text("utf-8", errors="replace")) is not None


@contextmanager
def connect_to_kept(*, workers: bool, config: str | None = None, as_json: bool = False) -> Iterator[ServiceConnection]:
    """Connect to the same service, if it keeps runs. Without `workers`, a stack of our own is a Redis alone."""
    url = find_service_url()
    stack = None if url else Stack.start(wait=False) if workers and Home().data.exists() else start_reader()
    with stack or nullcontext():
        with show_progress("connecting" if url else "starting"):
            from cantata.surfaces.cli.connection import ServiceConnection  # noqa: PLC0415  # as above

        with ServiceConnection(url, stack=stack, config=config, as_json=as_json) as connection:
            yield connection


def start_reader(*, may_be_new: bool = False) -> Stack:
    """Begin to start a Redis without workers, with what this folder keeps. Raises UnavailableError if it keeps nothing."""
    home = Home()
    if not (may_be_new or home.data.exists()):
        raise UnavailableError(
            f"nothing runs here, and nothing is kept here: neither REDIS_URL nor CANTATA_APP is set, and there is no {home.path}; "
            "start a stack with `submit up`, or set REDIS_URL to the Redis of your workers"
        )
    return Stack.start(server_only=True, wait=False)


def redis_of_user_app() -> str | None:
    """Return the URL of the Redis of the application that CANTATA_APP names, if it names one that uses Redis."""
    if not os.environ.get("CANTATA_APP"):  # not by `settings`, which takes 0.2 s to load
        return None
    check_extras("celery", needed_by="CANTATA_APP")
    from cantata.client import application  # noqa: PLC0415  # loads Celery, and the user's application

    app = application.configured()
    return application.redis_url_of(app) if app else None


def find_service_url() -> str | None:
    """Return the URL of a running service, if there is one: that of REDIS_URL, else of the application that CANTATA_APP names.

    Raises UnavailableError if the stack kept in this folder does not answer.
    """
    if url := os.environ.get("REDIS_URL") or redis_of_user_app():
        return url
    stack = attach()
    if stack is None and (here := status()).kept:
        raise UnavailableError(
            f"the Redis of the stack in {here.home} does not answer; see `submit status`, or stop the stack with `submit down`"
        )
    if stack is None:
        return None
    if fault := stack.status().code_fault:
        text = f"warning: the stack in {stack.home.path} still serves the previous code: {fault}"
        json_streams.report("code_not_served", text, {"fault": fault}, level="warning")
    return stack.url
