"""Model calls through LiteLLM: with fallbacks, a cache, telemetry and estimates of their cost."""

from cantata_workers.models.dialects.reasoning import without_reasoning
from cantata_workers.models.llm.caching import cached_reply, complete_with_cache
from cantata_workers.models.llm.completions import complete
from cantata_workers.models.llm.failures import ERRORS
from cantata_workers.models.llm.library import (
    CHARACTERS_PER_TOKEN,
    context_window,
    estimate_tokens,
    estimate_usage,
    load,
    max_usd,
    on_request_start,
    provider_of,
)
from cantata_workers.models.llm.model_replies import Reply

__all__ = [
    "CHARACTERS_PER_TOKEN", "ERRORS", "Reply", "cached_reply", "complete", "complete_with_cache", "context_window", "estimate_tokens",
    "estimate_usage", "load", "max_usd", "on_request_start", "provider_of", "without_reasoning",
]  # fmt: skip
