"""Readers of configuration files and chain requests."""
