"""Errors of Redis: which are transient and lead to another try, and a sentence for each that says what to do."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from cantata.errors import UnavailableError

Reply = TypeVar("Reply")

UNAVAILABLE = (
    RedisConnectionError,
    RedisTimeoutError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterError,
    TryAgainError,
    AskError,
)
"""Raised while Redis is unavailable or takes no writes, or refuses a password, which may be corrected meanwhile."""
TRANSIENT_PREFIXES = ("OOM", "LOADING", "MISCONF", "BUSY", "NOREPLICAS", "UNBLOCKED")
REFUSALS = ("OOM", "MISCONF", "NOREPLICAS")

WRONG_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED

FULL = "Redis is full (maxmemory): raise its maxmemory or shorten the retention of runs; nothing recorded is lost"


class Unconfirmed(RedisConnectionError):
    """Redis made a change, but too few replicas have it yet."""


LOADING = "{redis} is loading its data; wait"

MESSAGES_BY_CLASS: dict[type[Exception], str] = {
    BusyLoadingError: LOADING,
    MasterNotFoundError: "{redis} has no master that its Sentinels report as up ({text}); check the Sentinels",
    Unconfirmed: "{redis} made the change, but {text} (CANTATA_WAIT_REPLICAS); start replicas, or repeat with the same idempotency key",
    AuthenticationError: "{redis} refuses the user or the password; set them in REDIS_URL",
    NoPermissionError: "{redis} denies a command that is needed ({text}); deploy/redis/users.acl lists them",
    InvalidResponse: "the server at {place} is not a Redis ({text}); correct REDIS_URL",
    MovedError: "{redis} is a node of a Redis Cluster; name it with redis+cluster:// in REDIS_URL",
    ClusterDownError: "{redis} is a cluster in which nodes are missing ({text}); start them",
    OutOfMemoryError: FULL,
    ReadOnlyError: "Redis has become a read-only replica; name its master in REDIS_URL",
}
CLIENT_CERTIFICATE_HINT = "; if it asks for a client's certificate, name one with ?ssl_certfile= and &ssl_keyfile="
MESSAGES_BY_CODE = {
    "OOM": FULL,
    "LOADING": LOADING,
    "MISCONF": "Redis cannot write to its disk and refuses writes; free the disk it writes to",
    "NOREPLICAS": "{redis} has fewer replicas than its min-replicas-to-write asks for, and refuses writes; start them",
}
CODE = re.compile(r"(?:^|: ?-?)([A-Z]{2,}) ")  # Redis puts the script before it, redis-py the command of a pipeline
MESSAGES_BY_TEXT = {
    "DB index is out of range": "{redis} has no database of this number; name another in REDIS_URL, or raise its setting 'databases'",
    "cluster support disabled": "{redis} is not a Redis Cluster; name it with redis:// in REDIS_URL",
}


def is_transient(error: RedisError) -> bool:
    """Return whether the call may succeed if it is repeated soon."""
    return isinstance(error, UNAVAILABLE) or str(error).startswith(TRANSIENT_PREFIXES)


def is_outage(error: BaseException) -> bool:
    """Return whether an error of Redis is about the server or the connection, and not about what a command or script met."""
    return isinstance(error, RedisError) and (
        type(error) is not ResponseError or is_transient(error) or "NOPERM" in str(error)
    )


def is_refusal(error: BaseException) -> bool:
    """Return whether Redis answered that it takes no writes: it is full, cannot write its disk, or lacks replicas."""
    return any(isinstance(each, OutOfMemoryError) or str(each).startswith(REFUSALS) for each in _chain(error))


def with_retries(call: Callable[[], Reply], *, patience_s: float, note: str = "") -> Reply:
    """Call Redis, repeatedly while it is unavailable or takes no writes, for `patience_s` in all. Raises UnavailableError after that."""
    give_up = time.monotonic() + patience_s
    pause_s = 0.02
    while True:
        try:
            return call()
        except RedisError as error:
            if not is_transient(error):
                raise
            if time.monotonic() + pause_s > give_up:
                raise UnavailableError(f"{reason(error)}{note}") from error
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 1.0)


def reason(failure: BaseException, place: str = "") -> str:
    """Return a sentence for what is wrong with the Redis at this address, and what to do."""
    redis = f"Redis at {place}" if place else "Redis"
    for error in _chain(failure):
        if isinstance(error, ssl.SSLError) and not isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):  # those break off
            return _of_tls(error, redis)
        for kind, sentence in MESSAGES_BY_CLASS.items():
            if isinstance(error, kind):
                return sentence.format(redis=redis, place=place or "REDIS_URL", text=_short(error))
        if (found := _of_text(str(error))) is not None:
            return found.format(redis=redis)
    if place.startswith("rediss") and any(
        isinstance(error, FileNotFoundError | PermissionError) for error in _chain(failure)
    ):
        return f"{redis} cannot be reached, as a TLS file cannot be read; correct ssl_ca_certs, ssl_certfile and ssl_keyfile in REDIS_URL"
    hint = CLIENT_CERTIFICATE_HINT if place.startswith("rediss") and "closed" in str(failure) else ""
    return f"{redis} cannot be reached ({_short(failure)}); start it or correct REDIS_URL{hint}"


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: list[BaseException] = []
    while failure is not None and failure not in seen:
        yield failure
        seen.append(failure)
        failure = failure.__cause__ or failure.__context__


def _of_text(text: str) -> str | None:
    """Return the sentence for an error message of Redis; None if it is unknown."""
    codes = (MESSAGES_BY_CODE[code] for code in CODE.findall(text) if code in MESSAGES_BY_CODE)
    return next(codes, None) or next((sentence for part, sentence in MESSAGES_BY_TEXT.items() if part in text), None)


def _short(error: BaseException) -> str:
    """Return an error's message on one line, without the errors that it lists."""
    return " ".join(str(error).partition(" : ")[0].split()).rstrip(".")


def _of_tls(error: ssl.SSLError, redis: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = error.verify_message.rstrip(".")
        if error.verify_code in WRONG_NAME:
            return f"the certificate of {redis} is not for this name ({detail}); use a name in REDIS_URL that it is for"
        if error.verify_code == EXPIRED:
            return f"the certificate of {redis} has expired; renew it"
        return f"the certificate of {redis} is signed by no trusted authority ({detail}); name it with ?ssl_ca_certs= in REDIS_URL"
    detail = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
    if "alert" in detail or "certificate required" in detail:
        return f"{redis} refuses this client's certificate ({detail}); name one with ?ssl_certfile= and &ssl_keyfile= in REDIS_URL"
    return f"{redis} does not answer in TLS ({detail}); name it with redis:// in REDIS_URL if it speaks none"
