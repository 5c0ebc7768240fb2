"""Start, sweep and fork runs."""
