"""LiteLLM: its import, a hook for the start of its requests, and estimates by its price list. No other module imports it.

It takes 3.5 s and 160 MB, so it is done in processes that call models, before they accept work.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from typing import Any

from cantata.values import Usage
from cantata_workers.models.llm.openai_messages import Messages, text_of_parts, thoughts_of_parts
from cantata_workers.process import prefork_imports

ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its price list from GitHub
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # else it fetches these too
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env of the working directory
}
DELTA_FIELDS = ("refusal", "reasoning_details")
"""Fields of streamed messages that LiteLLM does not know: refusals of OpenAI, and reasoning of OpenRouter."""
FINISH_REASONS = {
    "refusal": "refusal",  # Anthropic: stop_reason (platform.claude.com, "Handling stop reasons")
    "model_context_window_exceeded": "length",  # Anthropic and Bedrock
    "model_length": "length",  # Mistral (docs.mistral.ai/api)
    "insufficient_system_resource": "length",  # DeepSeek (api-docs.deepseek.com, "Create Chat Completion")
    "error": "error",  # OpenRouter (openrouter.ai/docs/api-reference/overview)
    "network_error": "error",  # Z.ai
}
"""Finish reasons that LiteLLM takes for `stop`, or a refusal for the filter → ours."""
CHARACTERS_PER_TOKEN = 4  # of English; the true count comes with the reply

OnRequestStart = Callable[[], Awaitable[None]]

_loading = threading.Lock()
_litellm: Any = None
_hook: ContextVar[OnRequestStart | None] = ContextVar("on_request_start", default=None)


def load(home: Path | None = None) -> Any:
    """Import and configure LiteLLM, once; return it.

    `home` is the folder of the embedded model's server: by default CANTATA_HOME, else `.cantata`.
    """
    global _litellm
    with _loading:
        if _litellm is None:
            os.environ.update(ENVIRONMENT)
            litellm = import_litellm()
            _configure(litellm)
            _register_local_models(litellm, home or Path(os.environ.get("CANTATA_HOME") or ".cantata"))
            _litellm = litellm
            prefork_imports.keeps_litellm = True
        return _litellm


def import_litellm() -> Any:
    """Import LiteLLM without configuring it, as before a fork: not all children call models."""
    os.environ.update(ENVIRONMENT)
    import litellm  # noqa: PLC0415  # the only import: it is slow and large

    return litellm


def _configure(litellm: Any) -> None:
    import aiohttp  # noqa: PLC0415  # LiteLLM has loaded it

    _patch(aiohttp)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    _read_contents_whole(litellm)
    litellm.disable_token_counter = (
        True  # of a stream it would count the prompt's tokens on the event loop, with 39 MB of tables
    )


def _read_contents_whole(litellm: Any) -> None:
    """Have LiteLLM read contents that are lists of parts, as a text, and leave `<think>` tags to us.

    It refuses lists, though OpenAI's and Mistral's APIs document them, and reads tags in whole replies only, not in streams.
    """
    from litellm.litellm_core_utils import core_helpers  # noqa: PLC0415  # as litellm itself
    from litellm.litellm_core_utils.prompt_templates import common_utils, factory  # noqa: PLC0415  # as above
    from litellm.llms.openai import openai  # noqa: PLC0415  # as above
    from litellm.types import utils  # noqa: PLC0415  # as above

    common_utils._parse_content_for_reasoning = lambda text: (None, text)
    for kind in (utils.Message, utils.Delta):
        _join_parts(kind)
    _keep_fields(utils.Delta)
    _keep_refusals_of_proxies(openai)
    litellm.MistralConfig._handle_content_list_to_str_conversion = staticmethod(
        lambda data: data
    )  # it keeps the last text alone
    _send_redacted_thinking(factory.BedrockConverseMessagesProcessor)
    core_helpers._FINISH_REASON_MAP.update(FINISH_REASONS)


def _join_parts(kind: Any) -> None:
    init = kind.__init__

    @wraps(init)
    def patched(self: Any, content: Any = None, *args: Any, **more: Any) -> None:
        if isinstance(content, list):
            content, thoughts = text_of_parts(content), thoughts_of_parts(content)
            more |= {"reasoning_content": thoughts} if thoughts and not more.get("reasoning_content") else {}
        init(self, content, *args, **more)

    kind.__init__ = patched


def _keep_fields(delta: Any) -> None:
    """Have chunks of a stream keep fields that LiteLLM drops with a chunk that has nothing else."""
    init = delta.__init__

    @wraps(init)
    def patched(self: Any, *args: Any, **more: Any) -> None:
        if kept := {name: more[name] for name in DELTA_FIELDS if more.get(name)}:
            more["provider_specific_fields"] = {**(more.get("provider_specific_fields") or {}), **kept}
        init(self, *args, **more)

    delta.__init__ = patched


def _keep_refusals_of_proxies(openai: Any) -> None:
    """Have whole replies keep a refusal where LiteLLM's own proxy puts it: the reader puts the null of OpenAI's SDK in its place."""
    convert = openai.convert_to_model_response_object

    @wraps(convert)
    def patched(response_object: Any = None, *args: Any, **more: Any) -> Any:
        for choice in (response_object or {}).get("choices") or []:
            message = choice.get("message") or {}
            if message.get("refusal") is None and (
                refusal := (message.get("provider_specific_fields") or {}).get("refusal")
            ):
                message["refusal"] = refusal
        return convert(response_object, *args, **more)

    openai.convert_to_model_response_object = patched


def _send_redacted_thinking(processor: Any) -> None:
    """Have requests to Bedrock contain redacted thinking, which LiteLLM makes empty thinking of; Claude wants it back as it was."""
    translate = processor.translate_thinking_blocks_to_reasoning_content_blocks

    def patched(thinking_blocks: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [
            {"reasoningContent": {"redactedContent": block.get("data")}}
            if block.get("type") == "redacted_thinking"
            else translate([block])[0]
            for block in thinking_blocks
        ]

    processor.translate_thinking_blocks_to_reasoning_content_blocks = staticmethod(patched)


def _register_local_models(litellm: Any, home: Path) -> None:
    from cantata_workers.models.local.provider import Provider  # noqa: PLC0415  # it imports httpx, which LiteLLM has loaded by now

    class LocalModels(Provider, litellm.CustomLLM):  # type: ignore[misc]  # mypy does not read litellm
        """The provider `local` of LiteLLM."""

    litellm.custom_provider_map = [{"provider": "local", "custom_handler": LocalModels(home.resolve())}]
    litellm.utils.custom_llm_setup()


@cache
def _provider_of(model: str, api_base: str | None) -> str:
    try:
        return str(load().get_llm_provider(model=model, api_base=api_base)[1])
    except Exception:  # noqa: BLE001  # LiteLLM raises it for a model without a known provider
        return model.partition("/")[0]


def provider_of(model: str, params: Mapping[str, Any]) -> str:
    """Return LiteLLM's name of a model's provider."""
    return _provider_of(model, params.get("api_base"))


def missing_keys(model: str, params: Mapping[str, Any]) -> list[str]:
    """Return the variables of the environment that calls of a model with these parameters lack."""
    return [] if params.get("api_key") else list(load().validate_environment(model)["missing_keys"])


@contextmanager
def on_request_start(call: OnRequestStart) -> Iterator[None]:
    """Await `call` when a request made within the block starts."""
    token = _hook.set(call)
    try:
        yield
    finally:
        _hook.reset(token)


def _patch(aiohttp: Any) -> None:
    """Add the hook to all aiohttp sessions that are created from now on: LiteLLM creates its own, without an option for tracing."""
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_headers_sent)
    init = aiohttp.ClientSession.__init__

    @wraps(init)
    def patched(self: Any, *args: Any, trace_configs: Any = None, **more: Any) -> None:
        init(self, *args, trace_configs=[*(trace_configs or ()), trace], **more)

    aiohttp.ClientSession.__init__ = patched


async def _headers_sent(_session: object, _context: object, _params: object) -> None:
    if call := _hook.get():
        await call()


def estimate_tokens(messages: Messages) -> int:
    """Return about how many tokens messages have."""
    return len(json.dumps(list(messages), ensure_ascii=False)) // CHARACTERS_PER_TOKEN + 1


def max_usd(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """Return the cost of so many tokens in US dollars; None if the price is unknown."""
    price = _price_of(model)
    input_usd, output_usd = price.get("input_cost_per_token"), price.get("output_cost_per_token")
    if input_usd is None or output_usd is None:
        return None
    return float(input_usd) * input_tokens + float(output_usd) * output_tokens


def estimate_usage(model: str, input_tokens: int, output_tokens: int) -> Usage:
    """Return the usage of one call with so many tokens, for a provider that does not report it."""
    cost = max_usd(model, input_tokens, output_tokens)
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost, model_calls=1)


def has_price(model: str) -> bool:
    """Return whether the price list has a model."""
    return _price_of(model).get("input_cost_per_token") is not None


def context_window(model: str) -> int | None:
    """Return the most tokens that a prompt of a model may have, by LiteLLM's list; None if the list does not say."""
    window = _price_of(model).get("max_input_tokens")
    return window if isinstance(window, int) else None


def _price_of(model: str) -> Mapping[str, Any]:
    prices = load().model_cost
    return prices.get(model) or prices.get(model.partition("/")[2]) or {}
