"""`submit turn`, `submit chain` and `submit workflow`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click

from cantata.errors import ConfigError
from cantata.surfaces.cli.connect import connect_or_start
from cantata.surfaces.cli.options import (
    config_option,
    detach_option,
    json_option,
    parse_json_object,
    submission_options,
)

if TYPE_CHECKING:
    from cantata.flows.submission import Submission
    from cantata.values import JsonValue


@click.command()
@click.argument("text")
@click.option("--team", metavar="NAME", help="The team to answer; the configured default if absent.")
@click.option("--agent", metavar="NAME", help="The agent to answer.")
@click.option(
    "--workflow", metavar="NAME", help="The workflow to answer: a chain, or one in Python with one required parameter."
)
@click.option(
    "--session", metavar="NAME", help="The session that the turn belongs to; turns of a session run in order."
)
@click.option("--history", is_flag=True, help="Put the conversation so far before the text.")
@config_option
@submission_options
@detach_option
@json_option
def turn(
    text: str,
    team: str | None,
    agent: str | None,
    workflow: str | None,
    session: str | None,
    history: bool,
    config: str | None,
    submission: Submission,
    detach: bool,
    as_json: bool,
) -> int:
    """Submit a user turn and show its answer; `submit TEXT` is short for it. TEXT may be - for standard input."""
    if text == "-":
        text = sys.stdin.read()
    with _print_rejection(as_json, "refused_turn"), connect_or_start(config=config, as_json=as_json) as connection:
        submission = replace(submission, session=session)
        run = connection.submit_turn(
            submission, text=text, team=team, agent=agent, workflow=workflow, send_history=history
        )
        return connection.detach(run) if detach else connection.watch(run)


@click.command()
@click.argument("file")
@click.option(
    "--input",
    "given",
    callback=parse_json_object,
    metavar="JSON|@FILE",
    help="The initial input, in place of the request's own.",
)
@config_option
@submission_options
@detach_option
@click.option("--events", is_flag=True, help="Print each event as a line of JSON before the response; implies --json.")
@json_option
def chain(
    file: str,
    given: dict[str, JsonValue] | None,
    config: str | None,
    submission: Submission,
    detach: bool,
    events: bool,
    as_json: bool,
) -> int:
    """Submit a chain request and show its result. FILE may be - for standard input, or a name under `chains:` of the configuration."""
    with (
        _print_rejection(as_json or events, "refused_chain"),
        connect_or_start(config=config, as_json=as_json or events) as connection,
    ):
        run = connection.submit_chain(file, given, submission)
        return connection.detach(run) if detach else connection.watch(run, events=events)


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "given",
    callback=parse_json_object,
    metavar="JSON|@FILE",
    help="The arguments of its function, by name; none if absent.",
)
@config_option
@submission_options
@detach_option
@json_option
def workflow(
    name: str,
    given: dict[str, JsonValue] | None,
    config: str | None,
    submission: Submission,
    detach: bool,
    as_json: bool,
) -> int:
    """Run a workflow in Python and show its result. NAME is a name under `workflows:` of the configuration."""
    with _print_rejection(as_json, "refused_chain"), connect_or_start(config=config, as_json=as_json) as connection:
        run = connection.submit_workflow(name, given or {}, submission)
        return connection.detach(run) if detach else connection.watch(run)


@contextmanager
def _print_rejection(as_json: bool, factory: Literal["refused_chain", "refused_turn"]) -> Iterator[None]:
    """Print the result of a rejected request, for programs; for people the error has its faults."""
    try:
        yield
    except ConfigError as error:
        if as_json:
            from cantata.client import records

            click.echo(getattr(records, factory)(error).model_dump_json())
        raise
