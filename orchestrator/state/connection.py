"""Opens Redis and says whether it can be trusted with runs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from orchestrator.errors import ConfigError, UnavailableError

__all__ = ["Redis", "RedisFailure", "Trust", "celery_url", "check", "connect", "redis_url", "without_password"]

RedisFailure = RedisError
"""Whatever Redis may raise, for those who only log it."""

OLDEST_REDIS = 7  # XADD with `0-*` ids


def redis_url(url: str) -> str:
    """The URL in redis-py's words: Celery writes a socket as `redis+socket:///path?virtual_host=0`, redis-py as `unix:///path?db=0`."""
    if not url.startswith("redis+socket://"):
        return url
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    database = query.get("virtual_host", query.get("db", ["0"]))[0]
    login = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
    return f"unix://{login}{parts.path}?db={database}"


def celery_url(url: str) -> str:
    """The URL in Celery's words, which wants to be told for TLS what redis-py does anyway: to check the certificate."""
    if url.startswith("rediss://") and "ssl_cert_reqs" not in url:
        return f"{url}{'&' if urlsplit(url).query else '?'}ssl_cert_reqs=required"
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    login = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
    return f"redis+socket://{login}{parts.path}?virtual_host={parse_qs(parts.query).get('db', ['0'])[0]}"


def connect(url: str, *, name: str = "cantata", single: bool = False) -> Redis:
    """A client for this URL; it does not retry on its own, since what may be told twice is the ledger's to know.

    With `single` it keeps one connection instead of a pool, for a process that does one thing at a time: 15 % less work a call (py-spy).
    Raises ConfigError if the URL is none.
    """
    try:
        return Redis.from_url(
            redis_url(url),
            decode_responses=True,
            client_name=name,
            health_check_interval=30,
            socket_connect_timeout=5,
            socket_timeout=30,
            retry=Retry(NoBackoff(), 0),
            single_connection_client=single,
        )
    except ValueError as error:
        raise ConfigError(f"REDIS_URL {without_password(url)!r} is no address of a Redis: {error}") from error


@dataclass(frozen=True, slots=True)
class Trust:
    """What is known of a Redis before runs are given to it."""

    warnings: tuple[str, ...] = ()


def check(client: Redis, *, url: str = "") -> Trust:
    """Ask a Redis whether it keeps what it is told.

    Raises UnavailableError if it cannot be reached, is a replica, is too old, or may evict keys of runs under way.
    """
    place = f" at {without_password(url)}" if url else ""
    try:
        server = client.info("server")
        role = client.info("replication")["role"]
        memory = client.info("memory")
        persistence = client.info("persistence")
    except AuthenticationError as error:
        raise UnavailableError(f"Redis{place} refuses the password; set it in REDIS_URL") from error
    except RedisError as error:
        raise UnavailableError(f"Redis{place} cannot be reached ({error}); start it or mend REDIS_URL") from error
    if int(str(server["redis_version"]).split(".")[0]) < OLDEST_REDIS:
        raise UnavailableError(f"Redis{place} is version {server['redis_version']}; {OLDEST_REDIS}.0 or newer is needed")
    if role != "master":
        raise UnavailableError(f"Redis{place} is a read-only replica; name its master in REDIS_URL")
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise UnavailableError(
            f"Redis{place} evicts any key when full (maxmemory-policy {policy}), so runs would be lost; set maxmemory-policy noeviction"
        )
    warnings = []
    if not int(persistence.get("aof_enabled", 0)):
        warnings.append(f"Redis{place} writes no AOF: runs under way are lost if it restarts; set appendonly yes")
    return Trust(tuple(warnings))


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
