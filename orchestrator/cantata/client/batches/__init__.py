"""Batches: many rows, a run each."""
