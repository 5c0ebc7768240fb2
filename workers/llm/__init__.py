"""Calls models through LiteLLM; the only module that imports it.

That takes 3.5 s and 160 MB, so `load` does it once, in processes that call models, before they accept work. LiteLLM neither retries nor
falls back here: a failure is told as a ModelError, and the ledger decides what becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from orchestrator import faultpoints
from orchestrator.errors import ModelError
from orchestrator.models.values import JsonValue, Usage
from workers.llm.failures import Failure, Setting, empty, explain, secrets_in, timed_out
from workers.local_llm.fields import Field

__all__ = ["Reply", "complete", "load"]

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its price list from GitHub
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # else it fetches these too
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env of the working directory
}
ONE_REQUEST: Mapping[str, JsonValue] = {"stream": False, "max_retries": 0, "num_retries": 0}

_loading = threading.Lock()
_litellm: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    text: str
    usage: Usage
    model: str
    """The name it was asked by."""
    finish_reason: str
    """stop, length, tool_calls or content_filter."""
    tool_calls: tuple[dict[str, JsonValue], ...] = ()
    """As OpenAI writes them: `{id, type, function: {name, arguments}}`, the arguments as text."""


async def complete(
    model: str,
    messages: Sequence[Mapping[str, JsonValue]],
    *,
    params: Mapping[str, JsonValue] = {},
    schema: Mapping[str, JsonValue] | None = None,
    timeout_s: float = 60.0,
) -> Reply:
    """The model's answer to the messages, by one request. Cancelling stops the request.

    `params` go to LiteLLM as they are, save `examples`, a list of `{text, label}`: they become earlier turns of the conversation, and
    `local/...` scores labels by them. With `schema`, a JSON schema, the reply's text is JSON that should fit it.
    Raises ModelError with the code model_timeout, rate_limited, model_unavailable, model_auth, model_unknown, model_bad_request,
    model_empty or model_error.
    """
    litellm = load()
    request: dict[str, Any] = {**params, "model": model, "messages": list(messages), "timeout": timeout_s, **ONE_REQUEST}
    if (examples := request.pop("examples", None)) is not None:
        request["messages"] = with_examples(messages, examples, schema)
    if schema is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}
    try:
        async with asyncio.timeout(timeout_s):
            faultpoints.at("model-sent")
            response = await litellm.acompletion(**request)
            faultpoints.at("model-answered")
    except TimeoutError:
        raise timed_out(model, timeout_s) from None
    except Exception as error:  # noqa: BLE001  # LiteLLM raises whatever its providers raise
        raise _failure(model, error, params) from None  # its own text may hold the key
    return _reply(model, response)


def load(home: Path | None = None) -> Any:
    """Import LiteLLM, unless that is done. The embedded model's server is found in `home`: CANTATA_HOME if absent, else `.cantata`."""
    global _litellm
    with _loading:
        if _litellm is None:
            os.environ.update(ENVIRONMENT)
            _litellm = _imported(home or Path(os.environ.get("CANTATA_HOME") or ".cantata"))
        return _litellm


def with_examples(
    messages: Sequence[Mapping[str, JsonValue]], examples: JsonValue, schema: Mapping[str, JsonValue] | None
) -> list[Mapping[str, JsonValue]]:
    """The messages, with examples as turns before the first that is no system message. Raises ModelError if they are no `{text, label}`."""
    asked = Field.of(schema) if schema is not None else None
    turns: list[Mapping[str, JsonValue]] = []
    for example in examples if isinstance(examples, list) else [examples]:
        match example:
            case {"text": str(text), "label": label}:
                turns += [{"role": "user", "content": text}, {"role": "assistant", "content": _answer(label, asked)}]
            case _:
                raise ModelError(f"an example is {{text, label}}, not {example!r}", code="model_bad_request")
    first = next((number for number, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    return [*messages[:first], *turns, *messages[first:]]


def _imported(home: Path) -> Any:
    import litellm  # noqa: PLC0415  # the choke-point: it is slow and large

    from workers.local_llm.provider import Provider  # noqa: PLC0415  # with it comes httpx, which LiteLLM has loaded by now

    class LocalModels(Provider, litellm.CustomLLM):  # type: ignore[misc]  # mypy does not read litellm
        """`local/...` among LiteLLM's providers."""

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.custom_provider_map = [{"provider": "local", "custom_handler": LocalModels(home.resolve())}]
    litellm.utils.custom_llm_setup()
    return litellm


def _answer(label: JsonValue, asked: Field | None) -> str:
    if not isinstance(label, str):
        return json.dumps(label, ensure_ascii=False)
    return asked.to_json(label) if asked and label in asked.labels else label


def _reply(model: str, response: Any) -> Reply:
    choice = response.choices[0] if response.choices else None
    text = (choice.message.content or "") if choice else ""
    calls = tuple(cast("dict[str, JsonValue]", call.model_dump()) for call in (choice.message.tool_calls or ())) if choice else ()
    finish_reason = str(choice.finish_reason) if choice else "no choices"
    if not text and not calls:
        raise empty(model, finish_reason)
    return Reply(text=text, usage=_usage(model, response), model=model, finish_reason=finish_reason, tool_calls=calls)


def _usage(model: str, response: Any) -> Usage:
    told = getattr(response, "usage", None)
    return Usage(
        input_tokens=getattr(told, "prompt_tokens", None) or 0,
        output_tokens=getattr(told, "completion_tokens", None) or 0,
        cost_usd=_cost_usd(model, response),
        model_calls=1,
    )


def _cost_usd(model: str, response: Any) -> float | None:
    """None where LiteLLM has no price: it may say 0 then, as it does for what is free."""
    cost: float | None = response._hidden_params.get("response_cost")
    return cost if cost or _has_price(model) else None


def _has_price(model: str) -> bool:
    prices = _litellm.model_cost
    price = prices.get(model) or prices.get(model.partition("/")[2]) or {}
    return price.get("input_cost_per_token") is not None


def _failure(model: str, error: Exception, params: Mapping[str, JsonValue]) -> ModelError:
    chain = list(_chain(error))
    if told := next((each for each in chain if isinstance(each, ModelError)), None):
        return told  # by the embedded model, and wrapped on its way
    failure = Failure(
        model=model, text=str(error), status=getattr(error, "status_code", None), headers=_headers(error),
        is_broken=any(isinstance(each, ImportError) for each in chain),
    )  # fmt: skip
    return explain(failure, _setting(model, params), now=datetime.now(UTC))


def _setting(model: str, params: Mapping[str, JsonValue]) -> Setting:
    secrets = secrets_in({**os.environ, **params})
    try:
        _litellm.get_llm_provider(model=model, api_base=params.get("api_base"))
    except Exception:  # noqa: BLE001  # its way to say that it knows none
        providers = [str(getattr(provider, "value", provider)) for provider in _litellm.provider_list]
        return Setting(providers, is_known=False, secrets=secrets)
    missing = [] if params.get("api_key") else _litellm.validate_environment(model)["missing_keys"]
    return Setting(missing_keys=missing, secrets=secrets)


def _headers(error: Exception) -> Mapping[str, str] | None:
    """Those of the provider's answer; LiteLLM puts an empty response where there was none."""
    return getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None) or None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
