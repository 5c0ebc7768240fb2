"""Compilation of a LangSwarm workflow into the nodes of a chain."""
