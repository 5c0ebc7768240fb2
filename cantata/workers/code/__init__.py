"""User code in a worker: one version of it, found, loaded and watched."""
