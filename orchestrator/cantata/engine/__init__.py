"""The engine makes runs go: their start, dispatch, sweep, limits and fleet."""
