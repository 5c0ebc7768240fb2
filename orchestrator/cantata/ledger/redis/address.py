"""Parsing of REDIS_URL: a single server, a master that Sentinels report, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

import redis
from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError

from cantata.errors import ConfigError
from cantata.settings import PLACEHOLDERS

SENTINEL_PORT = 26379
REDIS_PORT = 6379
CLUSTER_VERSION = (8, 1)  # of redis-py: what its clients of a cluster are made of changes between minors
POOL_OPTIONS = ("max_connections", "timeout", "connection_class", "path")

HostPort = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a Redis, and the options of connections to it."""

    kind: Literal["server", "sentinel", "cluster"]
    places: tuple[HostPort, ...] = ()
    """The Sentinels, or nodes of the cluster; none for a single server."""
    master: str = ""
    """The master's name at the Sentinels."""
    tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """redis-py's options of connections to Redis."""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """redis-py's options of connections to the Sentinels."""


def parse(url: str) -> Address:
    """Parse a URL. Raises ConfigError if it is invalid, or was copied with the password of an example."""
    try:
        address = _read(url)
    except ValueError as error:
        raise ConfigError(f"REDIS_URL {without_password(url)!r} is not the address of a Redis: {error}") from error
    if address.options.get("password") in PLACEHOLDERS:
        raise ConfigError(f"the password in REDIS_URL {without_password(url)!r} is that of the example; set your own")
    return address


def _read(url: str) -> Address:
    scheme = url.partition("://")[0]
    if scheme in ("redis+sentinel", "rediss+sentinel"):
        return _sentinels(url)
    if scheme in ("redis+cluster", "rediss+cluster"):
        return _cluster(url)
    return Address("server", tls=scheme == "rediss", options=_options(redis_url(url)))


def redis_url(url: str) -> str:
    """Return the URL as redis-py writes it: Celery has `redis+socket:///path?virtual_host=0` for a socket, redis-py `unix:///path?db=0`."""
    if not url.startswith("redis+socket://"):
        return url
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    database = query.get("virtual_host", query.get("db", ["0"]))[0]
    login = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
    return f"unix://{login}{parts.path}?db={database}"


def celery_url(url: str) -> str:
    """Return the URL as Celery writes it, which for TLS must require the check of the certificate; redis-py does that by default.

    Of Sentinels it names the first; the others, and the master, are options.
    """
    if url.startswith("rediss://") and "ssl_cert_reqs" not in url:
        return f"{url}{'&' if urlsplit(url).query else '?'}ssl_cert_reqs=required"
    if "+sentinel://" in url:
        return _celery_sentinel_url(parse(url))
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    login = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
    return f"redis+socket://{login}{parts.path}?virtual_host={parse_qs(parts.query).get('db', ['0'])[0]}"


def without_password(url: str) -> str:
    """Return the URL with passwords masked."""
    before, mark, query = url.partition("?")
    head, at, places = before.rpartition("@")
    scheme, separator, login = head.partition("://")
    name, colon, _password = login.partition(":")
    shown = f"{scheme}{separator}{name}:***{at}{places}" if at and colon else before
    pairs = [pair if "password=" not in pair else f"{pair.partition('=')[0]}=***" for pair in query.split("&")]
    return f"{shown}{mark}{'&'.join(pairs)}"


def shown(url: str) -> str:
    """Return the URL for messages: without passwords and connection options."""
    return without_password(url).partition("?")[0]


def _sentinels(url: str) -> Address:
    scheme, login, hosts, path, query = _parts(url)
    master, _, database = path.partition("/")
    if not master:
        raise ValueError("name the master behind the Sentinels, as in redis+sentinel://one:26379,two:26379/mymaster")
    options = _options(
        f"{scheme}://{login}localhost/{_number(database)}{query}", "sentinel_username", "sentinel_password"
    )
    own = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    own |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    return Address("sentinel", _places(hosts, SENTINEL_PORT), unquote(master), scheme == "rediss", options, own)


def _cluster(url: str) -> Address:
    if tuple(map(int, redis.__version__.split(".")[:2])) < CLUSTER_VERSION:
        raise ConfigError(
            f"a Redis Cluster needs redis-py {'.'.join(map(str, CLUSTER_VERSION))} or newer; {redis.__version__} is installed"
        )
    scheme, login, hosts, path, query = _parts(url)
    options = _options(f"{scheme}://{login}localhost/{_number(path)}{query}")
    if options.pop("db", 0):
        raise ValueError("a cluster has only database 0")
    return Address("cluster", _places(hosts, REDIS_PORT), tls=scheme == "rediss", options=options)


def _parts(url: str) -> tuple[str, str, str, str, str]:
    """Return the scheme of one of its servers, the login with its `@`, the hosts, the path, the query with its `?`."""
    scheme, _, rest = url.partition("://")
    before, mark, query = rest.partition("?")
    netloc, _, path = before.partition("/")
    login, at, hosts = netloc.rpartition("@")
    return scheme.partition("+")[0], login + at, hosts, path.strip("/"), mark + query


def _options(url: str, *besides: str) -> dict[str, Any]:
    """Return the connection options in a URL of one server, without host and port. Raises ValueError for unknown options."""
    options = parse_url(url)  # type: ignore[no-untyped-call]  # untyped in redis-py
    kind = SSLConnection if url.startswith("rediss://") else Connection
    for name in ("host", "port"):
        options.pop(name, None)
    known = {name: value for name, value in options.items() if name not in (*besides, *POOL_OPTIONS)}
    try:
        kind(**known)
    except (TypeError, RedisError) as error:
        raise ValueError(str(error).rpartition("() ")[2]) from error
    options.pop("connection_class", None)
    return dict(options)


def _number(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"a database is a number, not {text!r}")
    return int(text or 0)


def _places(hosts: str, port: int) -> tuple[HostPort, ...]:
    return tuple(_place(host, port) for host in hosts.split(","))


def _place(text: str, port: int) -> HostPort:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or port


def _celery_sentinel_url(address: Address) -> str:
    user, password = (quote(str(address.options.get(part, "")), safe="") for part in ("username", "password"))
    (host, port), login = address.places[0], f"{user}:{password}@" if user or password else ""
    return f"sentinel://{login}{f'[{host}]' if ':' in host else host}:{port}/{address.options.get('db', 0)}"
