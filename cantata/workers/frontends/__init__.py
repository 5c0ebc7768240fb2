"""Handlers of steps that only one frontend has."""
