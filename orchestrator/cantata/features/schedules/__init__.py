"""Schedules: when runs start without a caller, and their firing."""
