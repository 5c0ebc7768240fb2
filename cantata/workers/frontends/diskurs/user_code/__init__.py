"""The code of a Diskurs folder: loaded, given its classes, and called."""
