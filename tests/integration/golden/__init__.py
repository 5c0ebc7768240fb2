"""The answers of all commands and routes on a fixed set of runs, as reviewed text."""
