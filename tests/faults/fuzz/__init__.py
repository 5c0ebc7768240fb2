"""Feeds a stack and the readers of texts with what nobody should send, and looks at what is left."""
