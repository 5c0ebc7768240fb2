"""Compilation of LangSwarm's workflows into chains; here, and in every name, they are chains."""
