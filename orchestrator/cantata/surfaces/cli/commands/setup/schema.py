"""`submit schema`: the JSON Schemas of files that people write."""

from __future__ import annotations

from pathlib import Path

import click

from cantata import config

SCHEMAS = Path(config.__file__).with_name("schemas")


@click.command()
@click.argument("name", metavar="config|chain", type=click.Choice(["config", "chain"]))
def schema(name: str) -> int:
    """Print the JSON Schema of a configuration or a chain request.

    Editors read it: save it beside the file, whose first line is then `# yaml-language-server: $schema=config.schema.json`.
    """
    click.echo((SCHEMAS / f"{name}.schema.json").read_text("utf-8"), nl=False)
    return 0
