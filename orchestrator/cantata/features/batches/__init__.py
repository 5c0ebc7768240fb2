"""Batches: the records of many rows, each of which is a run."""
