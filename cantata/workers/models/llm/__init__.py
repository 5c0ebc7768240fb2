"""Asks models: through LiteLLM, with fallbacks, from a cache."""

from cantata.workers.models.llm.caching import cached, recalled
from cantata.workers.models.llm.completions import complete
from cantata.workers.models.llm.fallbacks import ask
from cantata.workers.models.llm.library import load
from cantata.workers.models.llm.model_replies import Reply
from cantata.workers.models.llm.request_start import on_request_start
from cantata.workers.models.llm.usage_estimates import max_usd

__all__ = ["Reply", "ask", "cached", "complete", "load", "max_usd", "on_request_start", "recalled"]
