"""Calls of tools: Python functions, commands, MCP servers."""
