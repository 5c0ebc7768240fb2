"""Graphs of user turns: agents, teams in each mode, conversations. All pure functions."""
