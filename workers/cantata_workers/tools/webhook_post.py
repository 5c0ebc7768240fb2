"""Signed posts to webhooks, as Standard Webhooks says, to addresses that may be posted to, a few at once to each host."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial

import httpx

from cantata import __version__
from cantata.errors import StepError
from cantata.flows.definitions import Webhook
from cantata.ledger.redis import clock
from cantata_workers.process.config_folder import variable

POST_S = 10.0  # of an attempt, with the look-up of the host and the head of the answer, however slowly it comes
HOST_POSTS = 4  # at once, to one host, by one worker: a dead one occupies no more of its 16 slots
TENANT_POSTS = 12  # at once, for one tenant, by one worker: the other slots are for others, whatever its hosts do
LOOKUPS = 16  # of hosts at once; those that hang occupy these threads, and not the loop's, which model calls use
KEY_PREFIX = "whsec_"  # of a secret in base64
SPECIAL_IPV4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
"""The special-purpose addresses of IANA's registry, and multicast; versions of Python know different ones."""
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
"""All other addresses are local, of a site, multicast, reserved, or carry an IPv4 address."""
SPECIAL_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # IETF protocols: Teredo, which carries an IPv4 address, benchmarks, ORCHID
            "2001:db8::/32",
            "3fff::/20",  # documentation
            "2002::/16",  # 6to4, which carries an IPv4 address
        ),
    )
)


class NoAnswer(Exception):
    """Nobody answered; the text says why."""


class PostsBusy(Exception):
    """This worker posts as much to the host, or for the tenant, as it may; the text says which."""


_under_way = Counter[str]()
"""The posts to each host, and for each tenant, as errors name them."""
_lookups = ThreadPoolExecutor(LOOKUPS, "webhook lookup")


@contextmanager
def place(hook: Webhook, *, tenant: str = "") -> Iterator[None]:
    """Take a place of a post's host and tenant.

    Raises PostsBusy if there is none: who waited here would take a slot from other tenants. Raises NoAnswer for a URL without a host.
    """
    try:
        host = httpx.URL(hook.url).host
    except (httpx.InvalidURL, UnicodeError) as error:  # it may have labels that no encoding knows
        raise NoAnswer(f"{type(error).__name__}: {error}") from error
    with _counted(f"for tenant {tenant!r}", TENANT_POSTS), _counted(f"to {host}", HOST_POSTS):
        yield


async def post(hook: Webhook, message_id: str, body: bytes) -> int:
    """Post a signed message, and return the status of the answer. Redirects are not followed, nor proxies of the environment used.

    Raises NoAnswer; StepError without a secret, with the code address_refused for a private address.
    """
    try:
        async with asyncio.timeout(POST_S):
            return await _post(hook, message_id, body)
    except (TimeoutError, httpx.TimeoutException):
        raise NoAnswer(f"no answer in {POST_S:g} s") from None
    except (OSError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


async def _post(hook: Webhook, message_id: str, body: bytes) -> int:
    signed_at = int(clock.now())
    headers = {
        "content-type": "application/json", "user-agent": f"cantata/{__version__}", "webhook-id": message_id,
        "webhook-timestamp": str(signed_at), "webhook-signature": sign(variable(hook.secret_env), message_id, signed_at, body),
    }  # fmt: skip
    url = httpx.URL(hook.url)
    host = url.netloc.decode()
    address = await _address_of(
        url.host, url.port or (443 if url.scheme == "https" else 80), allow_private=hook.allow_private
    )
    async with (
        httpx.AsyncClient(timeout=POST_S, trust_env=False, verify=_tls()) as client,
        client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers={**headers, "host": host},
            extensions={"sni_hostname": url.host},
        ) as answer,
    ):  # the connection goes to the address that was checked: the host's name is not looked up again
        return answer.status_code  # its body may have no end, and is not read: the connection is closed


@cache
def _tls() -> ssl.SSLContext:
    """Return what all posts share: to read the certificates takes the loop, on which model calls run too, some 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


@contextmanager
def _counted(what: str, most: int) -> Iterator[None]:
    if _under_way[what] >= most:
        raise PostsBusy(f"{most} messages {what}")
    _under_way[what] += 1
    try:
        yield
    finally:
        _under_way[what] -= 1
        if not _under_way[what]:
            del _under_way[what]


def sign(secret: str, message_id: str, signed_at: int, body: bytes) -> str:
    """Return the signature of a message by Standard Webhooks: `v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`.

    A secret that begins with `whsec_` is the base64 of the key, any other the key itself. Raises StepError if it is empty or not base64.
    """
    try:
        key = (
            base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True)
            if secret.startswith(KEY_PREFIX)
            else secret.encode()
        )
    except Base64Error:
        raise StepError(
            f"the secret of the webhook begins with {KEY_PREFIX!r}, but the rest is not base64; correct the variable"
        ) from None
    if not key:
        raise StepError("the secret of the webhook is empty; set its variable in the environment of the workers")
    digest = hmac.new(key, f"{message_id}.{signed_at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


async def _address_of(host: str, port: int, *, allow_private: bool) -> str:
    """Return an address of a host. Raises StepError if one of them is not public, unless that is allowed."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_lookups, look_up)
    addresses = [str(each[4][0]) for each in found]
    if not allow_private and (private := next((each for each in addresses if not is_public(each)), None)):
        message = f"{host} has the address {private}, which is not public; set 'allow_private' of its webhook if that is meant"
        raise StepError(message, code="address_refused")
    return addresses[0]


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet, also if it carries an IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return is_public(str(ip.ipv4_mapped))
        return ip in GLOBAL_IPV6 and not any(ip in network for network in SPECIAL_IPV6)
    return not any(ip in network for network in SPECIAL_IPV4)
