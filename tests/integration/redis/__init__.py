"""Redis in the ways that operators run it."""
