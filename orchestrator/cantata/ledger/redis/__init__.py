"""Connections, keys, scripts and errors of Redis."""
