"""Classification of failed model calls: the error code, whether and when a retry may help, and a message without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from cantata.errors import ModelError
from cantata.observability.logs.secrets import redact
from cantata.suggestions import nearest

TEXT_LIMIT = 400  # characters of a provider's message

RETRYABLE = frozenset({"model_timeout", "rate_limited", "model_unavailable", "model_empty"})

CODES = {401: "model_auth", 403: "model_auth", 404: "model_unknown", 408: "model_timeout", 429: "rate_limited", 504: "model_timeout"}
"""By HTTP status; any other 4xx is a bad request, any other 5xx an unavailable provider."""

SENTENCES = {
    "model_timeout": "the provider timed out",
    "rate_limited": "the provider asks to slow down",
    "model_unavailable": "the provider failed",
    "model_auth": "the provider refuses the key; check it",
    "model_unknown": "the provider has no such model, or this key may not use it; correct the name",
    "model_bad_request": "the provider refuses the request; correct the agent's parameters or shorten its messages",
    "model_error": "the call failed",
}


@dataclass(frozen=True)
class Failure:
    """A failed call, as described by its exception."""

    model: str
    text: str
    status: int | None = None
    """The HTTP status; LiteLLM invents one where there was no answer."""
    headers: Mapping[str, str] | None = None
    """The headers of the answer; None if there was none."""
    is_broken: bool = False
    """The cause is local, such as a missing package, and not the network."""
    has_begun: bool = False
    """A part of a streamed answer had come."""
    address: str = ""
    """The host and port that could not be reached; empty if it is not known."""


@dataclass(frozen=True)
class ProviderInfo:
    """The facts about a model's provider in this process."""

    providers: Sequence[str] = ()
    is_known: bool = True
    """The model's name has a known provider."""
    missing_keys: Sequence[str] = ()
    """Environment variables that the provider needs and that are not set."""
    secrets: Sequence[str] = ()
    """Values to redact from messages."""


def explain(failure: Failure, provider: ProviderInfo, *, now: datetime) -> ModelError:
    """Return the error for a failed call."""
    if not provider.is_known:
        return ModelError(_no_provider(failure.model, provider.providers), code="model_unknown")
    code = code_of(failure, provider)
    return ModelError(
        _sentence(code, failure, provider), code=code, retryable=code in RETRYABLE, retry_after_s=retry_after_s(failure.headers or {}, now)
    )


def code_of(failure: Failure, provider: ProviderInfo) -> str:
    """Return the error code of a failed call to a known provider."""
    status = failure.status
    if failure.headers is None and status is not None and status >= 500:
        if provider.missing_keys and re.search(r"key|credential", failure.text, re.IGNORECASE):
            return "model_auth"  # LiteLLM reports a missing key as 500
        return "model_error" if failure.is_broken else "model_unavailable"
    if status is None and failure.address:
        return "model_unavailable"  # of files and batches LiteLLM passes on the error of a connection as it is
    if failure.has_begun and (status is None or status < 400):
        return "model_unavailable"
    if status is None or status < 400:
        return "model_error"
    return CODES.get(status) or ("model_bad_request" if status < 500 else "model_unavailable")


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait by a Retry-After header, which has seconds or a date; None without one."""
    value = {name.lower(): value for name, value in headers.items()}.get("retry-after")
    if value is None:
        return None
    if value.strip().replace(".", "", 1).isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())


def _sentence(code: str, failure: Failure, provider: ProviderInfo) -> str:
    model, text = repr(failure.model), _provider_text(failure, provider)
    keys = " and ".join(provider.missing_keys)
    if code == "model_auth" and keys:
        more = f": {text}" if len(provider.missing_keys) > 1 else ""  # one of them may do
        return f"model {model} needs a key: set {keys} in the environment of the agents workers{more}"
    if failure.headers is not None:
        return f"model {model}: {SENTENCES[code]} ({failure.status}): {text}"
    if code == "model_unavailable" and failure.has_begun:
        return f"model {model}: the answer broke off: {text}"
    if code == "model_unavailable":
        address = f" at {failure.address}" if failure.address else ""
        return f"model {model}: the provider{address} cannot be reached{f' ({keys} is not set)' if keys else ''}: {text}"
    return f"model {model}: {SENTENCES[code]}: {text}"


def _provider_text(failure: Failure, provider: ProviderInfo) -> str:
    """Return the provider's message, without what LiteLLM adds to it."""
    text = re.sub(r"^(?:litellm\.\w+: )*(?:\w+(?: Error)?: )?(?:\w+Exception - )?", "", failure.text.split("\nTraceback")[0])
    return redact(" ".join(text.split()), provider.secrets)[:TEXT_LIMIT]


def _no_provider(model: str, providers: Sequence[str]) -> str:
    provider, _, name = model.partition("/")
    near = nearest(provider, providers) if name else None
    hint = f"did you mean {f'{near}/{name}'!r}?" if near else "write it as provider/name, such as 'openai/gpt-4o-mini'"
    return f"model {model!r} names no provider that LiteLLM knows; {hint}"
