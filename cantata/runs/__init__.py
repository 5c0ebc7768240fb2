"""What every door shows of a run: the fold of its events, and its results. Pure."""
