"""`submit turn` and `submit chain`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from cantata.cli.connect import open_submission
from cantata.cli.options import SECONDS, as_json, configured, detach, json_object, labelled
from cantata.errors import ConfigError

if TYPE_CHECKING:
    from cantata.models.values import JsonValue

timeout = click.option("--timeout", type=SECONDS, metavar="SECONDS", help="How long the run may take.")


@click.command()
@click.argument("text")
@click.option("--team", metavar="NAME", help="The team to answer; the configured default if absent.")
@click.option("--agent", metavar="NAME", help="The agent to answer.")
@click.option("--workflow", metavar="NAME", help="The workflow to answer: a chain of the configuration.")
@click.option("--session", metavar="NAME", help="The conversation it belongs to; the turns of one run in order.")
@click.option("--history", is_flag=True, help="Put the conversation so far before the text.")
@configured
@timeout
@labelled
@detach
@as_json
def turn(
    text: str, team: str | None, agent: str | None, workflow: str | None, session: str | None, history: bool, config: str | None,
    timeout: float | None, labels: dict[str, str], detach: bool, as_json: bool,
) -> int:  # fmt: skip
    """Submit a user turn and show its answer; `submit TEXT` is short for it. TEXT may be - for standard input."""
    if text == "-":
        text = sys.stdin.read()
    with _refusals(as_json, "refused_turn"), open_submission(config=config, as_json=as_json) as submission:
        run = submission.submit_turn(
            text, team=team, agent=agent, workflow=workflow, session=session, send_history=history, timeout_s=timeout, labels=labels
        )
        return submission.detach(run) if detach else submission.watch(run)


@click.command()
@click.argument("file")
@click.option("--input", "given", callback=json_object, metavar="JSON|@FILE", help="The initial input, in place of the request's own.")
@configured
@timeout
@labelled
@detach
@click.option("--events", is_flag=True, help="Print each event as a line of JSON before the response; implies --json.")
@as_json
def chain(
    file: str, given: dict[str, JsonValue] | None, config: str | None, timeout: float | None, labels: dict[str, str],
    detach: bool, events: bool, as_json: bool,
) -> int:  # fmt: skip
    """Submit a chain request and show its outcome. FILE may be - for standard input, or a name under `chains:` of the configuration."""
    with _refusals(as_json or events, "refused_chain"), open_submission(config=config, as_json=as_json or events) as submission:
        run = submission.submit_chain(file, given=given, timeout_s=timeout, labels=labels)
        return submission.detach(run) if detach else submission.watch(run, events=events)


@contextmanager
def _refusals(as_json: bool, answer: Literal["refused_chain", "refused_turn"]) -> Iterator[None]:
    """Print the result of a request that is refused, for programs; people are told its faults by the error."""
    try:
        yield
    except ConfigError as error:
        if as_json:
            from cantata.runs import results  # noqa: PLC0415  # loads what `open_submission` has loaded while the workers start

            click.echo(getattr(results, answer)(error).model_dump_json())
        raise
