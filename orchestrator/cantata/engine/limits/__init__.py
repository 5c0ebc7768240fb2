"""Rate limits, budgets and costs that all processes share."""
