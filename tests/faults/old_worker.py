"""A worker of an older version, which has never heard of gathering: `python -m tests.faults.old_worker QUEUE ...`."""

from __future__ import annotations

import sys

import cantata
from cantata_workers.__main__ import main
from cantata_workers.steps.handlers import HANDLERS

if __name__ == "__main__":
    cantata.__version__ = "0.0.1"
    del HANDLERS["chain.gather"]
    sys.exit(main())
