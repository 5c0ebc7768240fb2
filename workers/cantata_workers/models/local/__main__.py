"""`python -m cantata_workers.models.local --home DIR`: the model server, started by `ensure_server`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cantata_workers.models.local.model_server import IDLE_S, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the model until it is idle or its stack is gone."""
    parser = argparse.ArgumentParser(
        prog="python -m cantata_workers.models.local", description="The model server of local/smollm2."
    )
    parser.add_argument("--home", type=Path, required=True, help="the folder where its address is published")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="seconds without a request after which it stops")
    options = parser.parse_args(arguments)
    serve(options.home, idle_s=options.idle_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
