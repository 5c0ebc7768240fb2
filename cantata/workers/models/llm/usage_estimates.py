"""Estimates of the tokens and the cost of a model call, by LiteLLM's price list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cantata.workers.models.llm.library import load
from cantata.workers.models.llm.openai_messages import Messages

CHARACTERS_PER_TOKEN = 4  # of English; the true count comes with the reply


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


def has_price(model: str) -> bool:
    """Return whether the price list has a model."""
    return _price_of(model).get("input_cost_per_token") is not None


def _price_of(model: str) -> Mapping[str, Any]:
    prices = load().model_cost
    return prices.get(model) or prices.get(model.partition("/")[2]) or {}
