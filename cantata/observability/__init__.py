"""Logs, metrics, traces and health."""
