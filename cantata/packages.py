"""Names of the packages that Cantata installs, which no package of a user may have."""

from __future__ import annotations

from pathlib import Path

OURS = ("cantata",)
HERE = Path(__file__).resolve().parents[1]
"""Where they are installed."""
