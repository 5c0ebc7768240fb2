"""Other engines doing the same work: a script each, run by an interpreter of its own. `tests/bench/rivals.py` runs them."""
