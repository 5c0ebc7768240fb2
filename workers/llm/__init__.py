"""Asks models: through LiteLLM, with fallbacks, from a cache."""

from workers.llm.caching import cached, recalled
from workers.llm.calls import complete
from workers.llm.fallbacks import ask
from workers.llm.leaving import on_leaving
from workers.llm.library import is_loaded, load
from workers.llm.prices import most_usd
from workers.llm.replies import Reply

__all__ = ["Reply", "ask", "cached", "complete", "is_loaded", "load", "most_usd", "on_leaving", "recalled"]
