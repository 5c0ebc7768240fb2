"""The two ways in which models call tools, native calls and calls in a JSON reply, as one thing. Pure: no service, no clock."""
