"""Rate limits, budgets, quotas and costs that all processes share."""
