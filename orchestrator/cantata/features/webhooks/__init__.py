"""Webhooks: the runs that post to them."""
