"""Forks of ended runs: planned, read, laid out in pieces, made in one call."""
