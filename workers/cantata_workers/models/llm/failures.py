"""Classification of failed model calls: the error code, whether and when a retry may help, and a message without secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from cantata.errors import ModelError
from cantata.operation.logs.secrets import redact
from cantata.text.suggestions import nearest

TEXT_LIMIT = 400  # characters of a provider's message

MAX_RETRY_AFTER_S = 366 * 86_400.0
"""The longest wait that a provider may ask for; a longer one is nonsense, and ignored."""
EPOCH_S, EPOCH_MS = 1e9, 1e12
"""From these values on, a number in Retry-After is a point in time: seconds, or milliseconds, since 1970 (1e9 s was in 2001)."""


@dataclass(frozen=True)
class ErrorKind:
    """The meaning of an error code of model calls."""

    sentence: str
    """The beginning of its message."""
    is_retryable: bool = False
    """The same request may succeed later."""
    fallback: Literal["always", "larger", "named", "never"] = "always"
    """Another model may succeed: always, if its context is larger, if the agent names this code in `fallback_on`, or never."""


ERRORS: Mapping[str, ErrorKind] = {
    "model_timeout": ErrorKind("the provider timed out", is_retryable=True),
    "rate_limited": ErrorKind("the provider asks to slow down", is_retryable=True),
    "model_unavailable": ErrorKind("the provider failed", is_retryable=True),
    "model_empty": ErrorKind("the reply is empty", is_retryable=True),
    "model_quota": ErrorKind("the account has no quota or credit left; add credit, or use another key"),
    "model_auth": ErrorKind("the provider refuses the key; check it"),
    "model_unknown": ErrorKind("the provider has no such model, or this key may not use it; correct the name"),
    "model_error": ErrorKind("the call failed"),
    "model_context": ErrorKind(
        "the messages are longer than the model's context; shorten them, or name a fallback with a larger one",
        fallback="larger",
    ),
    "refusal": ErrorKind("the model refuses to answer", fallback="named"),
    "content_filter": ErrorKind("the provider's content filter stopped the call", fallback="named"),
    "model_bad_request": ErrorKind(
        "the provider refuses the request; correct the agent's parameters or shorten its messages", fallback="never"
    ),
}
"""Each code of a failed model call; the only place that says which are worth another try, and which another model."""

CODES = {
    401: "model_auth", 402: "model_quota", 403: "model_auth", 404: "model_unknown", 408: "model_timeout", 409: "model_unavailable",
    425: "model_unavailable", 429: "rate_limited", 504: "model_timeout",
}  # fmt: skip
"""By HTTP status; any other 4xx is a bad request, any other 5xx, such as Anthropic's 529 (overloaded), an unavailable provider."""

_QUOTA = re.compile(r"insufficient_quota|billing_hard_limit_reached|credit balance is too low", re.IGNORECASE)
"""Codes of OpenAI (platform.openai.com/docs/guides/error-codes) and words of Anthropic (docs.anthropic.com/en/api/errors).
"exceeded your current quota" is not among them: Gemini says so for a limit a minute."""
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|context window|prompt is too long|input is too long"
    r"|exceeds? the (?:available )?context|input token count.{0,40} exceeds",
    re.IGNORECASE,
)
"""The codes and words in which OpenAI, Azure, Anthropic, Bedrock, Gemini, vLLM and llama.cpp refuse a prompt that is too long."""
_FILTER = re.compile(r"content_filter|ResponsibleAIPolicyViolation|content management policy", re.IGNORECASE)
"""Azure's prompt filter (learn.microsoft.com/azure/ai-services/openai/concepts/content-filter)."""


@dataclass(frozen=True)
class Failure:
    """A failed call, as described by its exception."""

    model: str
    text: str
    reason: str = ""
    """The provider's own codes of the error, such as insufficient_quota; empty if it names none."""
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
    wait_s = retry_after_s(failure.headers or {}, now)
    return ModelError(
        _sentence(code, failure, provider), code=code, retryable=ERRORS[code].is_retryable, retry_after_s=wait_s
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
    words = f"{failure.reason} {failure.text}"
    if status in (400, 402, 403, 429) and _QUOTA.search(words):
        return "model_quota"
    if status in (400, 413, 422) and _CONTEXT.search(words):
        return "model_context"
    if status == 400 and _FILTER.search(words):
        return "content_filter"
    return CODES.get(status) or ("model_bad_request" if status < 500 else "model_unavailable")


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait that the headers of an answer ask for; None without a header that makes sense.

    `Retry-After` has seconds or a date (RFC 9110); some servers write a point in time, in seconds or milliseconds since 1970.
    `retry-after-ms`, which OpenAI and Azure send, is more exact.
    """
    given = {name.lower(): value.strip() for name, value in headers.items()}
    millis = _number(given.get("retry-after-ms", ""))
    seconds = millis / 1000 if millis is not None else _seconds(given.get("retry-after", ""), now)
    return seconds if seconds is not None and seconds <= MAX_RETRY_AFTER_S else None


def _seconds(value: str, now: datetime) -> float | None:
    number = _number(value)
    if number is not None:
        if number >= EPOCH_S:
            return max(0.0, number / (1000 if number >= EPOCH_MS else 1) - now.timestamp())
        return number
    try:
        until = parsedate_to_datetime(value)
        return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())
    except (ValueError, OverflowError):
        return None


def _number(value: str) -> float | None:
    """Return a number of at most 20 ASCII digits, or None: a longer one is nonsense, and may be infinite."""
    return float(value) if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{0,20})?", value) and math.isfinite(float(value)) else None


def _sentence(code: str, failure: Failure, provider: ProviderInfo) -> str:
    model, text = repr(failure.model), _provider_text(failure, provider)
    keys = " and ".join(provider.missing_keys)
    if code == "model_auth" and keys:
        more = f": {text}" if len(provider.missing_keys) > 1 else ""  # one of them may do
        return f"model {model} needs a key: set {keys} in the environment of the agents workers{more}"
    if failure.headers is not None:
        return f"model {model}: {ERRORS[code].sentence} ({failure.status}): {text}"
    if code == "model_unavailable" and failure.has_begun:
        return f"model {model}: the answer broke off: {text}"
    if code == "model_unavailable":
        address = f" at {failure.address}" if failure.address else ""
        return (
            f"model {model}: the provider{address} cannot be reached{f' ({keys} is not set)' if keys else ''}: {text}"
        )
    return f"model {model}: {ERRORS[code].sentence}: {text}"


def _provider_text(failure: Failure, provider: ProviderInfo) -> str:
    """Return the provider's message, without what LiteLLM adds to it."""
    text = re.sub(
        r"^(?:litellm\.\w+: )*(?:\w+(?: Error)?: )?(?:\w+Exception - )?", "", failure.text.split("\nTraceback")[0]
    )
    return redact(" ".join(text.split()), provider.secrets)[:TEXT_LIMIT]


def _no_provider(model: str, providers: Sequence[str]) -> str:
    provider, _, name = model.partition("/")
    near = nearest(provider, providers) if name else None
    hint = f"did you mean {f'{near}/{name}'!r}?" if near else "write it as provider/name, such as 'openai/gpt-4o-mini'"
    return f"model {model!r} names no provider that LiteLLM knows; {hint}"
