"""What a model call may cost, by LiteLLM's price list."""

from __future__ import annotations

from cantata.workers.models.llm.library import load


def max_usd(model: str, tokens_in: int, tokens_out: int) -> float | None:
    """US dollars for so many tokens; None if the price is unknown."""
    prices = load().model_cost
    price = prices.get(model) or prices.get(model.partition("/")[2]) or {}
    asked, answered = price.get("input_cost_per_token"), price.get("output_cost_per_token")
    return None if asked is None or answered is None else float(asked) * tokens_in + float(answered) * tokens_out
