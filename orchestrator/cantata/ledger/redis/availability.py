"""Start of processes while Redis is away: they wait, say so, end at once on SIGTERM, and go on by themselves."""

from __future__ import annotations

import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from cantata.errors import UnavailableError
from cantata.ledger.redis import outages
from cantata.ledger.redis.connection import Redis, loaded, reason, shown
from cantata.ledger.redis.keys import key_of
from cantata.operation import json_streams

FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0  # between two attempts
LOOK_S = 1.0  # between two looks of a process that does nothing else regularly
SIGNAL_S = 0.05  # between two looks for SIGTERM
LOOKED_AT = "workers"  # a key that each user of Redis may read; a Redis that loads its data refuses that
NO_KEY = "asked"  # nobody makes it

Started = TypeVar("Started")

_AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ClusterDownError,
    TryAgainError,
    RedisClusterException,
)
_REFUSED = (AuthenticationError, NoPermissionError, InvalidResponse, PermissionError)


def is_away(error: BaseException) -> bool:
    """Return whether Redis does not run, cannot be found or still loads its data, rather than refuses us."""
    if "TLS file" in str(error):  # of `reason`: nothing here but the file is away
        return False
    is_found, seen = False, set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        if isinstance(following, ssl.SSLError) and not isinstance(following, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return False
        if isinstance(following, _REFUSED):
            return False
        is_found = is_found or isinstance(following, _AWAY)
        following = following.__cause__ or following.__context__
    return is_found


def check_loaded(client: Redis, url: str) -> None:
    """Raise UnavailableError while Redis loads its data, or does not answer."""
    try:
        client.exists(key_of(client, LOOKED_AT))
    except RedisError as error:
        raise UnavailableError(f"{reason(error, shown(url))}{loaded(url, error)}") from error


def when_available(
    start: Callable[[], Started], *, name: str, waiting: Callable[[str], object] = lambda _: None
) -> Started:
    """Call `start` until Redis is there, with growing pauses, and return what it returns. SIGTERM ends the process meanwhile.

    Redis's absence and its return are logged with `name`; `waiting` is called with the reason before each pause.
    Raises at once what `start` raises for any other reason, such as a refused password.
    """
    pause_s = FIRST_PAUSE_S
    with _ending_at_once():
        while True:
            asked_at = time.monotonic()
            try:
                started = start()
            except (UnavailableError, RedisError, RedisClusterException) as error:
                if not is_away(error):
                    raise
                outages.failed(error, name=name)
                waiting(str(error))
            else:
                outages.answered(asked_at, name=name)
                return started
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)


def watch(client: Redis, url: str, *, name: str) -> None:
    """Look in a thread, as long as this process lives, whether Redis takes writes, and log when it is away and back."""

    def look() -> None:
        while True:
            time.sleep(LOOK_S)
            asked_at = time.monotonic()
            try:
                client.set(
                    key_of(client, NO_KEY), "1", xx=True
                )  # it changes nothing, and a Redis that takes no writes refuses it
            except (RedisError, OSError, ValueError) as error:  # ValueError: of a connection that is closed meanwhile
                outages.failed(error, shown(url), name=name)
            else:
                outages.answered(asked_at, name=name)

    threading.Thread(target=look, name="redis watch", daemon=True).start()


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGTERM end this process with status 0, also while it waits in C for a name server, and as the first process of a container.

    Python's handlers run only between its instructions, and the kernel ignores a signal without a handler for process 1.
    """
    if not hasattr(signal, "sigtimedwait") or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            if signal.sigtimedwait([signal.SIGTERM], SIGNAL_S):
                with suppress(Exception):
                    json_streams.finish()
                os._exit(0)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    looking = threading.Thread(target=look, name="stop signal", daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
