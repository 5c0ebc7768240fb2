"""The parent process of an embedded stack, and its children."""
