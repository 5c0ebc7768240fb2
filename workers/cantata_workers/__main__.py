"""`python -m cantata_workers QUEUE`: one worker process; `submit worker` starts one for each pool."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence

from cantata.errors import ConfigError, UnavailableError
from cantata.operation import json_streams
from cantata.operation.logs import configure_logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve queues until stopped; return the exit code. Without arguments those of the command line are used."""
    json_streams.install_if_wanted()
    parser = argparse.ArgumentParser(prog="python -m cantata_workers")
    parser.add_argument("queues", nargs="+")
    parser.add_argument("--name")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--metrics-port", type=int)
    options = parser.parse_args(arguments)
    configure_logs(for_runs=True)
    gc.disable()  # until it serves: the objects of imports stay, and scanning them takes a quarter of the time
    from cantata_workers.process.service import serve  # noqa: PLC0415

    try:
        name = options.name or "-".join(options.queues)
        return serve(
            tuple(options.queues), name=name, concurrency=options.concurrency, metrics_port=options.metrics_port
        )
    except (ConfigError, UnavailableError) as error:
        json_streams.report("process_failed", str(error), {"error": str(error)}, level="error")
        return 2 if isinstance(error, ConfigError) else 3


if __name__ == "__main__":
    sys.exit(main())
