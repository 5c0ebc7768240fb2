"""Health of a deployment: each part has a check that is ok, degraded or failing, with a message and the action to take.

    gather ──▶ facts ──▶ checks ──▶ report

Gathering reads the parts in parallel and waits for a few seconds at most; the rest is pure. Nothing is imported here: `submit doctor`
shows its first checks before it loads what the others need.
"""
