"""Runs and plans as text."""
