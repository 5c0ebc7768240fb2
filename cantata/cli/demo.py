"""`./run demo`: 30 support messages through a chain, a turn for a team, an agent with tools, a router, on a stack of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cantata import text_format
from cantata.cli.connect import open_submission
from cantata.cli.main import FAILED, ExitStatusCommand
from cantata.cli.submission import print_note
from cantata.config import loading as configuration
from cantata.models.definitions import Definitions
from cantata.models.values import JsonValue
from cantata.state.runs.records import RunRecord

FOLDER = Path(__file__).parents[2] / "configs" / "demo"
LEAST_RIGHT = 24  # of the 30 messages, with the embedded model
QUESTION = "How can I change my password?"
ORDER = "Where is my order A-1042?"
MESSAGES = ("Where is my refund?", "The app crashes when I open it.", "When will my parcel arrive?")
WIDTH = 120  # where no terminal says how wide it is

Rows = list[Mapping[str, JsonValue]]
"""Messages with the label a person gave, the one the model gave, and whether they agree."""


@click.command(cls=ExitStatusCommand)
@click.option("--model", metavar="NAME", help="Any LiteLLM model instead of the embedded one, such as openai/gpt-4o-mini.")
def demo(model: str | None) -> int:
    """Label 30 support messages, ask a team of three agents, an agent with tools, and a router."""
    had_redis = os.environ.pop("REDIS_URL", None) is not None  # the demo is the same on every machine: it uses a stack of its own
    definitions = with_model(configuration.load(FOLDER / "default.yaml"), model)
    with open_submission(config=definitions) as submission:
        print_note(f"1. A chain: {definitions.defaults.model} labels 30 support messages, a Python tool counts.")
        if model is None:
            print_note("   (The embedded model is for smoke tests: it shows that all works, not what a good model says. Try --model.)")
        chain = submission.submit_chain(str(FOLDER / "support.yaml"), given=None, timeout_s=None)
        status = submission.watch(chain)
        if status:
            return status
        rows = cast(Rows, cast("dict[str, JsonValue]", chain.result().outputs["count"])["rows"])
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        console.print(table(rows, is_terminal=console.is_terminal))
        click.echo(share(rows))
        if model is None and right(rows) < LEAST_RIGHT:
            print_note(f"that is too few: the embedded model should get at least {LEAST_RIGHT} right")
            return FAILED
        print_note(f"\n2. A turn for a team of three agents and a synthesizer: {QUESTION}")
        turn = submission.submit_turn(QUESTION, team="desk", agent=None, timeout_s=None)
        status = submission.watch(turn)
        if status:
            return status
        print_note(f"\n3. An agent with two tools, of which it picks one: {ORDER}")
        asked = submission.submit_turn(ORDER, team=None, agent="clerk", timeout_s=None)
        status = submission.watch(asked)
        for call in calls(asked.record()):
            click.echo(call)
        print_note("\n4. A router: the model chooses who takes each of three messages, by what agents are good at.")
        routed = [submission.submit_turn(message, team="counter", agent=None, timeout_s=None) for message in MESSAGES]
        for message, run in zip(MESSAGES, routed, strict=True):
            click.echo(f"{chosen(run.wait())} ← {message}")
    click.echo("\n" + what_next(chain.run_id, turn.run_id, had_redis=had_redis))
    return status


def calls(run: RunRecord) -> list[str]:
    """The tools that were called, and what they gave."""
    called = [step for step in run.steps.values() if step.spec.role == "tool"]
    given = [text_format.line(json.dumps(step.spec.params["input"])) for step in called]
    return [
        f"it called {step.spec.work.removeprefix('tools:')}({arguments}) → {text_format.line(str(step.output))}"
        for step, arguments in zip(called, given, strict=True)
    ]


def chosen(run: RunRecord) -> str:
    """The agent that a router chose; how the run ended, if it chose none."""
    names = [step.info["chosen_agent"] for step in run.steps.values() if "chosen_agent" in step.info]
    return str(names[-1]) if names else run.status


def with_model(definitions: Definitions, model: str | None) -> Definitions:
    """The definitions with another default model."""
    if model is None:
        return definitions
    return definitions.model_copy(update={"defaults": definitions.defaults.model_copy(update={"model": model})})


def right(rows: Rows) -> int:
    """How many labels are a person's."""
    return sum(1 for row in rows if row["right"])


def share(rows: Rows) -> str:
    """How many labels are a person's, in words."""
    return f"{right(rows)} of {len(rows)} labels are those a person gave ({right(rows) / max(1, len(rows)):.0%})."


def table(rows: Rows, *, is_terminal: bool) -> Table:
    """The labels, a row for each message."""
    shown = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for title in ("", "a person", "the model", "message"):
        shown.add_column(title, no_wrap=True, overflow="ellipsis")
    for row in rows:
        agrees = bool(row["right"])
        sign = Text("✓" if agrees else "✗", style="green" if agrees else "red")
        shown.add_row(sign, *(Text(text_format.line(str(row[key] or "-"))) for key in ("expected", "label", "text")))
    return shown


def what_next(chain_id: str, turn_id: str, *, had_redis: bool) -> str:
    """The runs, and what to try next."""
    own = Path(sys.executable).with_name("submit")
    command = os.path.relpath(own) if own.exists() else f"{os.path.relpath(sys.executable)} -m cantata.cli"
    submit = f"env -u REDIS_URL {command}" if had_redis else command
    config = os.path.relpath(FOLDER / "default.yaml")
    return "\n".join(
        [
            f"The runs were {chain_id} (chain) and {turn_id} (turn). To try next:",
            f"  {submit} up    # then look at the runs in a browser, at the address it gives; `{submit} down` stops it",
            f"  {submit} runs show {chain_id}",
            f"  {submit} plan {os.path.relpath(FOLDER / 'support.yaml')} --config {config}",
            f'  {submit} "What is your return policy?" --config {config}',
        ]
    )


def main() -> None:
    """`python -m cantata.cli.demo`."""
    demo(prog_name="./run demo")


if __name__ == "__main__":
    main()
