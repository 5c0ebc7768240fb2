"""Projects that others wrote, each with an environment of its own pins, all by their hashes; kept in .neighbours/ between runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
TOP = HERE.parents[2]
KEPT = TOP / ".neighbours"
"""Ignored by git."""


def environment(lock: str, locks: Path = HERE) -> Path:
    """Return the folder of an environment with exactly what the file `lock` of the folder `locks` names."""

    def build(folder: Path) -> None:
        _uv("venv", "--quiet", "--python", sys.executable, str(folder))
        _uv("pip", "sync", "--quiet", "--require-hashes", "--python", str(folder / "bin" / "python"), str(locks / lock))

    return kept(Path(lock).stem, (locks / lock).read_text(), build)


def environment_with_cantata(lock: str, locks: Path = HERE) -> Path:
    """Return the folder of an environment with what the file `lock` of the folder `locks` names, and a wheel of this checkout."""
    folder = environment(lock, locks)

    def install(marker: Path) -> None:
        wheel = _wheel()
        _uv(
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--reinstall",
            "--python",
            str(folder / "bin" / "python"),
            str(wheel),
        )
        marker.mkdir()

    kept(f"{Path(lock).stem}-wheel", f"{(locks / lock).read_text()}{_sources()}", install)
    return folder


def project(sdist: str, path: str, to: Path) -> Path:
    """Copy a folder of a source distribution, and return the copy."""

    def fetch(folder: Path) -> None:
        folder.mkdir()
        pip = environment("fetch.lock") / "bin" / "python"
        only_sources = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
        run(
            str(pip),
            "-m",
            "pip",
            "download",
            "--quiet",
            *only_sources,
            "-r",
            str(HERE / "projects.lock"),
            "-d",
            str(folder),
        )
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")

    (unpacked,) = (
        each
        for each in kept("projects", (HERE / "projects.lock").read_text(), fetch).glob(f"{sdist}-*")
        if each.is_dir()
    )
    shutil.copytree(unpacked / path, to)
    return to


def kept(name: str, made_from: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of that name, made anew unless the one there was made from the same."""
    KEPT.mkdir(exist_ok=True)
    folder, stamp = KEPT / name, KEPT / f"{name}.stamp"
    text = hashlib.sha256(f"{made_from}\0{sys.version}\0{folder}".encode()).hexdigest()
    with _alone(KEPT / f"{name}.making"):
        if not stamp.exists() or stamp.read_text() != text:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            stamp.write_text(text)
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sources() -> str:
    files = sorted(
        file
        for root in ("orchestrator", "workers")
        for file in (TOP / root).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    )
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in [TOP / "pyproject.toml", *files])).hexdigest()


def _wheel() -> Path:
    def build(folder: Path) -> None:
        run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))

    (wheel,) = kept("wheel", _sources(), build).glob("cantata-*.whl")
    return wheel


def uv() -> str:
    """Return the path of uv."""
    found = shutil.which(str(TOP / ".uv/bin/uv")) or shutil.which("uv")
    return found or missing("uv", "`./run install` brings it")


def _uv(*words: str) -> None:
    run(uv(), *words)


def run(*command: str) -> None:
    """Run a command, and fail with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ran = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.stdout}{ran.stderr}"


def missing(what: str, remedy: str) -> NoReturn:
    """Skip the test, since a program is missing; in CI, fail it."""
    words = f"{what} is missing: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)
