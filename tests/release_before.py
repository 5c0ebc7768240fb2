"""The release before the move into `orchestrator` and `workers`, built from the history: processes of it beside ours."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

TOP = Path(__file__).parents[1]
COMMIT = TOP / "tests" / "before_house"
"""Holds the hash of the last commit before it."""


def unpack(folder: Path) -> Path:
    """Build the wheel of that release, and return a folder that has it, for PYTHONPATH; it comes before what is installed."""
    commit = COMMIT.read_text().strip()
    archive = folder / "source.tar"
    done = subprocess.run(
        ["git", "archive", "--output", str(archive), commit], cwd=TOP, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"tests/before_house names the commit {commit}, and this clone lacks it: run `git fetch --unshallow` ({done.stderr.strip()})"
        )
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "source", filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=folder / "source", capture_output=True, check=True)
    (wheel,) = folder.glob("cantata-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"
