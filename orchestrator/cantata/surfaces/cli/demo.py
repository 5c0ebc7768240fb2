"""`./run demo`: 30 support messages through a chain, a turn for a team, an agent with tools and a router, on a stack of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cantata.client.records import BatchTarget, RunRecord, describe
from cantata.config import loading as configuration
from cantata.surfaces.cli.connect import connect_or_start
from cantata.surfaces.cli.connection import print_note
from cantata.surfaces.cli.main import FAILED, ExitStatusCommand
from cantata.text import text_format
from cantata.values import JsonValue

if TYPE_CHECKING:
    from cantata.surfaces.cli.connection import ServiceConnection

FOLDER = Path(__file__).parents[4] / "configs" / "demo"
MIN_CORRECT = 24  # of the 30 messages, with the embedded model
QUESTION = "How can I change my password?"
ORDER = "Where is my order A-1042?"
MESSAGES = ("Where is my refund?", "The app crashes when I open it.", "When will my parcel arrive?")
WIDTH = 120  # columns without a terminal
SCHEDULE_PATIENCE_S = 30.0  # six times what a run of the schedule takes to come

Rows = list[Mapping[str, JsonValue]]
"""Messages with the label of a person, the label of the model, and whether they agree."""


@click.command(cls=ExitStatusCommand)
@click.option(
    "--batch", "is_batch", is_flag=True, help="Label the messages as a batch, and let a schedule start a run."
)
@click.option(
    "--model", metavar="NAME", help="Any LiteLLM model instead of the embedded one, such as openai/gpt-4o-mini."
)
def demo(model: str | None, is_batch: bool) -> int:
    """Label 30 support messages, ask a team of three agents, an agent with tools, and a router."""
    had_redis = (
        os.environ.pop("REDIS_URL", None) is not None
    )  # the demo is the same on every machine: it uses a stack of its own
    definitions = configuration.load(FOLDER / "default.yaml").with_model(model)
    with connect_or_start(config=definitions) as connection:
        if is_batch:
            return label_batch(connection) or run_schedule(connection)
        print_note(f"1. A chain: {definitions.defaults.model} labels 30 support messages, a Python tool counts.")
        if model is None:
            print_note(
                "   (The embedded model is for smoke tests: it shows that everything works, not what a good model answers. Try --model.)"
            )
        chain = connection.submit_chain(str(FOLDER / "support.yaml"))
        status = connection.watch(chain)
        if status:
            return status
        rows = cast(Rows, cast("dict[str, JsonValue]", chain.result().outputs["count"])["rows"])
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        console.print(label_table(rows, is_terminal=console.is_terminal))
        click.echo(accuracy(rows))
        if model is None and count_correct(rows) < MIN_CORRECT:
            print_note(f"too few: with the embedded model at least {MIN_CORRECT} labels should be correct")
            return FAILED
        print_note(f"\n2. A turn for a team of three agents and a synthesizer: {QUESTION}")
        turn = connection.submit_turn(text=QUESTION, team="desk")
        status = connection.watch(turn)
        if status:
            return status
        print_note(f"\n3. An agent with two tools, of which it calls one: {ORDER}")
        tool_run = connection.submit_turn(text=ORDER, agent="clerk")
        status = connection.watch(tool_run)
        for call in tool_calls(tool_run.record()):
            click.echo(call)
        print_note("\n4. A router: the model chooses an agent for each of three messages by the skills of the agents.")
        routed = [connection.submit_turn(text=message, team="counter") for message in MESSAGES]
        for message, run in zip(MESSAGES, routed, strict=True):
            click.echo(f"{chosen_agent(run.wait())} ← {message}")
    click.echo("\n" + next_steps(chain.run_id, turn.run_id, had_redis=had_redis))
    return status


def label_batch(connection: ServiceConnection) -> int:
    """Label the messages of a file as a batch, print the file of results, and return the exit status."""
    from cantata.surfaces.cli.batch_submission import submit_file  # noqa: PLC0415  # its imports load while the workers start

    name = f"demo-{uuid4().hex[:8]}"
    with TemporaryDirectory() as folder:
        out = Path(folder, "labels.csv")
        status = submit_file(
            connection,
            str(FOLDER / "messages.csv"),
            BatchTarget(kind="agent", name="labeller"),
            out=str(out),
            name=name,
            ordered=True,
            concurrency=10,
            labels={},
        )
        click.echo(out.read_text("utf-8"), nl=False)
    return status


def run_schedule(connection: ServiceConnection) -> int:
    """Put the schedule of the configuration into effect, show the first run that it starts, and pause it; return the exit status."""
    schedules, name, wait_until = connection.client.schedules, "opening-hours", time.monotonic() + SCHEDULE_PATIENCE_S
    for change in schedules.apply():
        click.echo("\n".join(["", "A schedule:", *describe(change)]))
    schedules.resume(name)  # an earlier demo paused it
    fired = schedules.get(name).fired
    while (record := schedules.get(name)).fired == fired and time.monotonic() < wait_until:
        time.sleep(0.2)
    schedules.pause(name, note="the demo is over")
    if record.fired == fired:
        print_note(
            f"schedule {name!r} started no run within {SCHEDULE_PATIENCE_S:g} s: {record.error or 'see submit status'}"
        )
        return FAILED
    run = connection.client.run(record.runs[0].run_id)
    click.echo(f"It started run {run.run_id} by itself: {run.wait(SCHEDULE_PATIENCE_S).status}. It is paused now.")
    return 0


def tool_calls(run: RunRecord) -> list[str]:
    """Return the tool calls of a run, with arguments and results."""
    called = [step for step in run.steps.values() if step.spec.role == "tool"]
    arguments = [text_format.line(json.dumps(step.spec.params["input"])) for step in called]
    return [
        f"it called {step.spec.work.removeprefix('tools:')}({text}) → {text_format.line(str(step.output))}"
        for step, text in zip(called, arguments, strict=True)
    ]


def chosen_agent(run: RunRecord) -> str:
    """Return the agent that a router chose; the run's status if it chose none."""
    names = [step.info["chosen_agent"] for step in run.steps.values() if "chosen_agent" in step.info]
    return str(names[-1]) if names else run.status


def count_correct(rows: Rows) -> int:
    """Return the number of labels that are those of a person."""
    return sum(1 for row in rows if row["right"])


def accuracy(rows: Rows) -> str:
    """Return the share of labels that are those of a person, as a sentence."""
    return f"{count_correct(rows)} of {len(rows)} labels are those a person gave ({count_correct(rows) / max(1, len(rows)):.0%})."


def label_table(rows: Rows, *, is_terminal: bool) -> Table:
    """Return a table of the labels with a row for each message."""
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for title in ("", "a person", "the model", "message"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for row in rows:
        agrees = bool(row["right"])
        sign = Text("✓" if agrees else "✗", style="green" if agrees else "red")
        table.add_row(sign, *(Text(text_format.line(str(row[key] or "-"))) for key in ("expected", "label", "text")))
    return table


def next_steps(chain_id: str, turn_id: str, *, had_redis: bool) -> str:
    """Return the ids of the runs, and commands to try next."""
    own = Path(sys.executable).with_name("submit")
    command = os.path.relpath(own) if own.exists() else f"{os.path.relpath(sys.executable)} -m cantata.surfaces.cli"
    submit = f"env -u REDIS_URL {command}" if had_redis else command
    config = os.path.relpath(FOLDER / "default.yaml")
    return "\n".join(
        [
            f"The runs were {chain_id} (chain) and {turn_id} (turn). Next, try:",
            f"  {submit} up    # prints the address of the run pages; `{submit} down` stops it",
            f"  {submit} runs show {chain_id}",
            f"  {submit} plan {os.path.relpath(FOLDER / 'support.yaml')} --config {config}",
            f'  {submit} "What is your return policy?" --config {config}',
        ]
    )


def main() -> None:
    """Run `python -m cantata.surfaces.cli.demo`."""
    demo(prog_name="./run demo")


if __name__ == "__main__":
    main()
