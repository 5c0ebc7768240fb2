"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has."""

__version__ = "0.1.0"
