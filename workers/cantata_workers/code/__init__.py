"""The user code of a worker: one version of it, found, loaded and reported."""
