"""Redis: nothing else knows its keys."""
