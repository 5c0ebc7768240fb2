"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from cantata.bounds import read_json
from cantata.flows.submission import Submission

SECONDS = click.FloatRange(min=0, min_open=True, max=30 * 86_400)
MAX_QUOTED = 200  # characters of a text in a message

config_option = click.option(
    "--config",
    metavar="FILE",
    help="The configuration; default: CANTATA_CONFIG, configs/default.yaml, or that of `submit up` here.",
)
detach_option = click.option("--detach", is_flag=True, help="Print the run's id and return; the run goes on.")
metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve metrics at this port, 0 for any free one; default: CANTATA_METRICS_PORT, if set.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for programs.")
name_argument = click.argument("name")
tenant_option = click.option(
    "--tenant", metavar="NAME", default="", help="Its tenant, as in the label `tenant` of its runs."
)


def add_commands(
    group: click.Group, act: Callable[[str, str, str, bool], int], commands: Mapping[str, tuple[str, str]]
) -> None:
    """Add commands that call `act` with a method, a name, its tenant, and whether the result is JSON: command → method and help text."""
    for command, (method, text) in commands.items():

        def call(name: str, tenant: str, as_json: bool, *, method: str = method) -> int:
            return act(method, name, tenant, as_json)

        group.command(command, help=text)(name_argument(tenant_option(json_option(call))))


def local_name() -> str:
    """Return the name of the user who runs this, with that of this machine."""
    from cantata.client.auditing import local_actor  # noqa: PLC0415  # with it the stores are loaded, which takes a while

    return local_actor("cli").name


author_option = click.option(
    "--as",
    "by",
    metavar="NAME",
    default=local_name,
    show_default="USER@HOST",
    help="The author, who is recorded; a claim, which nothing checks.",
)


def parse_pairs(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the KEY=VALUE pairs of an option."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"expected {option.metavar or 'KEY=VALUE'}, not {text!r}")
    return dict(tuple(text.split("=", 1)) for text in texts)  # type: ignore[misc]  # each has two parts


label_option = click.option(
    "--label",
    "labels",
    multiple=True,
    callback=parse_pairs,
    metavar="KEY=VALUE",
    help="A label of the run; `tenant` names its tenant.",
)


webhook_option = click.option(
    "--webhook",
    "webhooks",
    multiple=True,
    metavar="[EVENT,...=]NAME|URL",
    help="Post to this webhook of the configuration, or URL, on end, wait or failure; without an event, on those of the webhook, else end.",
)


def submission_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of how a request is submitted; the command gets them as one `submission`."""

    @wraps(command)
    def call(*, timeout: float | None, labels: dict[str, str], webhooks: tuple[str, ...], **others: Any) -> int:
        return command(submission=Submission(labels, webhooks, timeout), **others)

    limit = click.option("--timeout", type=SECONDS, metavar="SECONDS", help="The longest time that the run may take.")
    return limit(label_option(webhook_option(call)))


def parse_json(ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return the JSON value of an option or argument."""
    return None if text is None else json_of(text)


def json_of(text: str) -> Any:
    """Return the JSON value of a text of the command line."""
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        hint = "" if "{" in text else "; a text needs its own quotes: '\"text\"'"
        raise click.BadParameter(f"{_beginning(text)} is not JSON: {error.msg} (column {error.colno}){hint}") from error
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _beginning(text: str) -> str:
    return repr(text) if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]!r}..."


def parse_assignments(ctx: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the PATH=VALUE pairs of an option; a value that is not JSON is a text."""
    return {path: _json_or_text(text) for path, text in parse_pairs(ctx, option, texts).items()}


def _json_or_text(text: str) -> Any:
    try:
        return read_json(text)
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_json_object(ctx: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return the JSON object of an option, or of the file named after its @."""
    if text is not None and text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(
                f"{text[1:]!r} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error
    name, equals, value_text = (text or "").partition("=")
    if equals and name.isidentifier():
        raise click.BadParameter(
            f"expected a JSON object, not {text!r}; write '{json.dumps({name: _json_or_text(value_text)}, ensure_ascii=False)}'"
        )
    value = parse_json(ctx, option, text)
    if text is not None and not isinstance(value, dict):
        raise click.BadParameter(f'expected a JSON object such as {{"key": "value"}}, not {text[:60]!r}')
    return value
