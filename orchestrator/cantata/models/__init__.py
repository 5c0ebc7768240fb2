"""Frozen pydantic models. Their only behaviour is validation."""
