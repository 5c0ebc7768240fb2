"""Requests before they are submitted, for surfaces that check them before there is a service."""

from cantata.engine.requests import CheckedChain, CheckedTurn, checked_chain, checked_turn

__all__ = ["CheckedChain", "CheckedTurn", "checked_chain", "checked_turn"]
