"""Chains: checked where they are submitted, planned as graphs of steps in a worker."""
