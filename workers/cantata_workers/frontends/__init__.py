"""Handlers of steps that only one frontend has, registered by entry points."""
