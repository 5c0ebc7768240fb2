"""The supervisor of an embedded stack and its child processes."""
