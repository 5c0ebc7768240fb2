"""Handlers of the core step kinds."""
