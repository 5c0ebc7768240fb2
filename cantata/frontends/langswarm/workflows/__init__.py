"""From a LangSwarm workflow to the nodes of a chain."""
