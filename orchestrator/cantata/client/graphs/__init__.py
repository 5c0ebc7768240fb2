"""Runs as graphs: the views of the run pages and of programs that draw a run."""
