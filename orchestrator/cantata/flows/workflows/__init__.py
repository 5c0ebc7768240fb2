"""Workflows in Python: a coroutine whose commands are steps of a run, and which is replayed from their recorded outcomes."""
