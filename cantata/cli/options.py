"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

SECONDS = click.FloatRange(min=0, min_open=True, max=30 * 86_400)

configured = click.option("--config", metavar="FILE", help="The configuration; else CANTATA_CONFIG, else configs/default.yaml here.")
detach = click.option("--detach", is_flag=True, help="Print the run's id and leave it to itself.")
metrics_port = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Show metrics there, 0 for any that is free; else at CANTATA_METRICS_PORT, if it is set.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")


def pairs(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """The KEY=VALUE pairs that an option holds."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"expected {option.metavar or 'KEY=VALUE'}, not {text!r}")
    return dict(tuple(text.split("=", 1)) for text in texts)  # type: ignore[misc]  # each has two parts


labelled = click.option(
    "--label", "labels", multiple=True, callback=pairs, metavar="KEY=VALUE", help="A label of the run; `tenant` says whose it is."
)


def json_value(ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    """The JSON that an option or argument holds."""
    try:
        return None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        hint = "" if "{" in str(text) else "; a text needs its own quotes: '\"text\"'"
        raise click.BadParameter(f"{text!r} is no JSON: {error.msg} (column {error.colno}){hint}") from error


def assignments(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """The PATH=VALUE pairs that an option holds; a value that is no JSON is a text."""
    return {path: _json_or_text(text) for path, text in pairs(ctx, option, texts).items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def json_object(ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    """The JSON object that an option holds, or the file named after its @."""
    if text is not None and text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{text[1:]!r} cannot be read: {error}") from error
    name, equals, given = (text or "").partition("=")
    if equals and name.isidentifier():
        raise click.BadParameter(
            f"expected a JSON object, not {text!r}; write '{json.dumps({name: _json_or_text(given)}, ensure_ascii=False)}'"
        )
    value = json_value(ctx, option, text)
    if text is not None and not isinstance(value, dict):
        raise click.BadParameter(f'expected a JSON object such as {{"key": "value"}}, not {text[:60]!r}')
    return value
