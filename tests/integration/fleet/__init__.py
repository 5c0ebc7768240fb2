"""Runs on a stack of real workers."""
