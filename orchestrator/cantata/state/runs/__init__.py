"""Runs in Redis as read: events, log lines, lists and snapshots."""
