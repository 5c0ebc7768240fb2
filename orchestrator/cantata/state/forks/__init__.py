"""Forks of runs: read, laid out in pieces, made in one call."""
