"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# No deadline for an example: two busy cores would make a test fail that is right.
settings.register_profile("cantata", settings(), deadline=None)
settings.load_profile("cantata")
