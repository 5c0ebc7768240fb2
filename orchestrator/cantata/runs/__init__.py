"""Results of runs, and the view of a run folded from its events. Pure."""
