"""The code of a Diskurs folder: its loading, the classes it imports, and calls of it."""
