"""Cantata: durable LLM agents, tools and chains on the Celery and Redis a team already has."""
