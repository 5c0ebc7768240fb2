"""Runs in Redis: the ledger, events, listings and snapshots."""
