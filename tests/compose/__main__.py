"""`./run compose-test`: builds the image, brings all up, tries each part, takes all down; 1 if anything is not as it should be."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import httpx

from tests.compose.engine import DEVELOPMENT, PRODUCTION, EngineError, Project, missing
from tests.compose.parts import DEVELOPMENT_PARTS, PARTS, Part

IMAGE = "cantata-test:local"


def build(project: Project) -> str:
    """Build the image, as `up` would."""
    project.compose("build", limit_s=1800)
    return f"{project.image}, {project.image_mb():.0f} MB with its base"


def up(project: Project) -> str:
    """Start all, and wait until all are healthy."""
    project.compose("up", "--detach", "--no-build", "--wait", limit_s=300)
    return f"{len(project.containers())} containers are healthy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try it; 0 also if there is no engine to try it with."""
    parser = argparse.ArgumentParser(prog="./run compose-test", description=__doc__)
    parser.add_argument("--image", metavar="NAME", help="use this image and build none")
    parser.add_argument(
        "--override",
        metavar="FILE",
        action="append",
        type=Path,
        default=[],
        help="a further Compose file, such as for a build behind a proxy",
    )
    options = parser.parse_args(arguments)
    if reason := missing():
        click.echo(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="cantata-compose-") as folder:
        overrides = [path.absolute() for path in options.override]
        first: dict[str, Part] = {} if options.image else {"build": build}
        for files, parts in (
            (DEVELOPMENT, {**first, "dev up": up, **DEVELOPMENT_PARTS}),
            (PRODUCTION, {"up": up, **PARTS}),
        ):
            project = Project(Path(folder), image=options.image or IMAGE, files=files, overrides=overrides)
            try:
                if not _passes(project, parts):
                    return 1
            finally:
                project.remove()
    return 0


def _passes(project: Project, parts: Mapping[str, Part]) -> bool:
    for name, part in parts.items():
        if not _tell(name, partial(part, project)):
            click.echo(project.last_words())
            return False
    return True


def _tell(name: str, part: Callable[[], str]) -> bool:
    """Try a part and say how it went."""
    started_at = time.monotonic()
    try:
        passed, said = True, part()
    except (AssertionError, EngineError, httpx.HTTPError, KeyError, ValueError) as error:
        passed, said = False, f"{type(error).__name__}: {error}"
    click.echo(f"{'ok' if passed else 'FAILED':6} {name:7} {time.monotonic() - started_at:6.1f} s  {said}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
