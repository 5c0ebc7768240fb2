"""The inbox: steps that wait for a person."""
