"""Submits one run in a process of its own, so that it can be struck: `python -m tests.faults.submitter REDIS SHAPE TAG JOURNAL`."""

from __future__ import annotations

import sys
from pathlib import Path

from cantata.client.client import Client
from tests.faults.shapes import SHAPES, definitions


def main() -> None:
    """Submit."""
    url, shape, tag, journal = sys.argv[1:]
    with Client(url, config=definitions()) as client:
        SHAPES[shape].submit(client, tag, Path(journal))


if __name__ == "__main__":
    main()
