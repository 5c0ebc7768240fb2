"""Schedules in Redis, and the runs that they start."""
