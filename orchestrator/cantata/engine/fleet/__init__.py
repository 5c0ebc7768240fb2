"""The fleet in Redis: workers, load, dead letters."""
