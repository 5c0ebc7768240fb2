"""Handlers of the core step kinds, and the execution of a step by them."""
