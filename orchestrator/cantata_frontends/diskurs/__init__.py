"""Diskurs folders: a `config.yml` and the folders of its agents."""
