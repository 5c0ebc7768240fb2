"""Runs as read: events, log lines, lists and snapshots; results, and the view folded from events."""
