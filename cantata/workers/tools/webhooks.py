"""Posts to webhooks: signed as Standard Webhooks says, to addresses that may be posted to, again for a day."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import random
import socket
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import UTC, datetime

import httpx

from cantata import __version__, fault_points
from cantata.errors import CantataError, StepError, UnavailableError
from cantata.models.definitions import Webhook
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue
from cantata.models.wire import ChainRequest, WebhookRequest
from cantata.runs.results import chain_response, turn_result
from cantata.settings import settings
from cantata.state.ledger.encoding import to_json
from cantata.state.redis import clock
from cantata.state.runs import alert_counts
from cantata.workers.code.config_folder import variable
from cantata.workers.runtime.step_context import StepContext

POST_S = 10.0  # of an attempt, with the look-up of the host
GIVE_UP_S = 24 * 3600.0  # after the event
MIN_DELAY_S, MAX_DELAY_S = 5.0, 3600.0  # between two attempts
MAX_BYTES = 1_000_000  # of a message; a larger result is left out
KEY_PREFIX = "whsec_"  # of a secret in base64
CARRIES_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))  # to any IPv4 address


async def webhook_deliver(context: StepContext) -> Outcome:
    """Post a message to a webhook; an alert of failed runs only if so many have failed."""
    request = WebhookRequest.model_validate(context.params["delivery"])
    hook = context.definitions.webhooks.get(request.to) or Webhook(url=request.to)
    if request.alert and request.event == "failure" and not await asyncio.to_thread(_is_due, context, request):
        return Outcome(output={"posted": False})
    body = await asyncio.to_thread(_message, context, request, hook)
    fault_points.at("tool-started")
    try:
        async with asyncio.timeout(POST_S):
            status = await post(hook, request.id, body.encode())
    except (httpx.HTTPError, OSError) as error:
        took_long = isinstance(error, (TimeoutError, httpx.TimeoutException))
        reason = f"it did not answer in {POST_S:g} s" if took_long else f"{type(error).__name__}: {error}"
        raise _failure(context, request, f"{request.to}: {reason}") from None
    except StepError as error:
        raise error if error.code == "address_refused" else _failure(context, request, f"{request.to}: {error}") from None
    fault_points.at("tool-finished")
    if 200 <= status < 300:
        return Outcome(output={"posted": True, "status": status})
    if status == 410:
        raise StepError(f"{request.to} answered 410: it wants no more messages; remove the webhook", code="webhook_gone")
    hint = "; redirects are not followed: set 'url' to the new place" if 300 <= status < 400 else ""
    raise _failure(context, request, f"{request.to} answered {status}{hint}")


def _failure(context: StepContext, request: WebhookRequest, message: str) -> StepError:
    """Return the error of an attempt, after which there is another one, unless that would be after a day."""
    delay_s = min(MAX_DELAY_S, MIN_DELAY_S * 2.0 ** min(context.begun.failures, 20)) * (0.5 + random.random() / 2)
    if clock.now() + delay_s > request.at_ms / 1000 + GIVE_UP_S:
        return StepError(f"{message}; it is given up after 24 h: `submit runs retry {context.begun.run_id}` posts it again", code="webhook_failed")
    return StepError(message, code="webhook_failed", retryable=True, retry_after_s=delay_s)


# --- the message ------------------------------------------------------------------------------------------------------------


def _is_due(context: StepContext, request: WebhookRequest) -> bool:
    alert = context.definitions.alerts[str(request.alert)]
    name = f"{context.begun.definitions[:16]}:{request.alert}:{context.begun.tenant}"
    return alert_counts.is_due(
        context.process.ledger, name, request.run_id, request.at_ms, request.id, count=alert.count, within_s=alert.within_s
    )


def _message(context: StepContext, request: WebhookRequest, hook: Webhook) -> str:
    """Return the body of a message as JSON."""
    about: dict[str, JsonValue] = {"message": request.text, "tenant": context.begun.tenant, **request.data}
    if request.run_id:
        link = f"{(settings().gateway_url or '').rstrip('/')}/runs/{request.run_id}"
        about |= {"run_id": request.run_id, "status": request.status, "link": link}
    about |= {name: value for name, value in (("step", request.step), ("alert", request.alert)) if value}
    kind = "alert" if request.alert else "test" if request.event == "test" else f"run.{request.event}"
    whole: dict[str, JsonValue] = {"type": kind, "timestamp": datetime.fromtimestamp(request.at_ms / 1000, UTC).isoformat(), "data": about}
    if kind.startswith("run.") and hook.body == "result":
        text = to_json({**whole, "data": {**about, **_result(context, request.run_id)}})
        if len(text.encode()) <= MAX_BYTES:
            return text
        about["note"] = f"the result is larger than {MAX_BYTES / 1e6:g} MB; read it at the link"
    return to_json(whole)


def _result(context: StepContext, run_id: str) -> Mapping[str, JsonValue]:
    ledger = context.process.ledger
    try:
        kind, request, _, labels = ledger.runs.request_of(run_id)
        nodes = [node.node_id for node in ChainRequest.model_validate_json(request).nodes] if kind == "chain" else []
        record = ledger.reader.read(run_id, nodes)
    except UnavailableError:
        raise
    except CantataError as error:
        return {"note": str(error)}
    result = chain_response(record) if kind == "chain" else turn_result(record)
    return {"kind": kind, "labels": dict(labels), "result": result.model_dump(mode="json")}


# --- the request ------------------------------------------------------------------------------------------------------------


async def post(hook: Webhook, message_id: str, body: bytes) -> int:
    """Post a signed message, and return the status of the answer. Redirects are not followed, nor proxies of the environment used.

    Raises StepError without a secret, with the code address_refused for a private address; OSError and HTTPError if nobody answers.
    """
    signed_at = int(clock.now())
    headers = {
        "content-type": "application/json", "user-agent": f"cantata/{__version__}", "webhook-id": message_id,
        "webhook-timestamp": str(signed_at), "webhook-signature": sign(variable(hook.secret_env), message_id, signed_at, body),
    }  # fmt: skip
    url = httpx.URL(hook.url)
    host = url.netloc.decode()
    address = await _address_of(url.host, url.port or (443 if url.scheme == "https" else 80), allow_private=hook.allow_private)
    async with (
        httpx.AsyncClient(timeout=POST_S, trust_env=False) as client,
        client.stream(
            "POST", url.copy_with(host=address), content=body, headers={**headers, "host": host}, extensions={"sni_hostname": url.host}
        ) as answer,
    ):  # the connection goes to the address that was checked: the host's name is not looked up again
        return answer.status_code


def sign(secret: str, message_id: str, signed_at: int, body: bytes) -> str:
    """Return the signature of a message by Standard Webhooks: `v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`.

    A secret that begins with `whsec_` is the base64 of the key, any other the key itself. Raises StepError if it is empty or not base64.
    """
    try:
        key = base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True) if secret.startswith(KEY_PREFIX) else secret.encode()
    except Base64Error:
        raise StepError(f"the secret of the webhook begins with {KEY_PREFIX!r}, but the rest is not base64; correct the variable") from None
    if not key:
        raise StepError("the secret of the webhook is empty; set its variable in the environment of the workers")
    digest = hmac.new(key, f"{message_id}.{signed_at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


async def _address_of(host: str, port: int, *, allow_private: bool) -> str:
    """Return an address of a host. Raises StepError if one of them is not public, unless that is allowed."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
        if any(ip in network for network in CARRIES_IPV4):
            return False
    return ip.is_global and not ip.is_multicast
