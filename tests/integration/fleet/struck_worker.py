"""`python -m tests.integration.fleet.struck_worker FILE QUEUE...`: a worker that is struck where the file says."""

from __future__ import annotations

import importlib
import os
import sys

from cantata.operation import fault_points
from cantata_workers.__main__ import main

if __name__ == "__main__":
    os.environ[fault_points.VARIABLE] = f"@{sys.argv.pop(1)}"
    importlib.reload(fault_points)
    sys.exit(main())
