"""One model of the two dialects in which models call tools: native calls, and calls in a JSON reply. Pure: no service, no clock."""
