"""Calls of models: permits, fallbacks, replies as they come."""
