"""Names of the packages that Cantata installs, which user code must not use."""

from __future__ import annotations

from pathlib import Path

OURS = ("cantata", "cantata_frontends", "cantata_workers")
HERE = Path(__file__).resolve().parents[2]
"""The folder that the first is installed in; in a checkout, others have one of their own."""
