"""Names of the packages that Cantata installs, which user code must not use."""

from __future__ import annotations

from pathlib import Path

OURS = ("cantata",)
HERE = Path(__file__).resolve().parents[1]
"""The folder that they are installed in."""
