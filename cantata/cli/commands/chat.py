"""`submit chat`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cantata.cli.connect import open_submission
from cantata.cli.main import FAILED
from cantata.cli.options import as_json, configured, labelled
from cantata.embedded import Home

RESUME = "submit chat --session"


@click.command()
@click.option("--team", metavar="NAME", help="The team to answer; the configured default if absent.")
@click.option("--agent", metavar="NAME", help="The agent to answer.")
@click.option("--session", metavar="NAME", help="The conversation to go on with; a new one if absent.")
@configured
@labelled
@as_json
def chat(team: str | None, agent: str | None, session: str | None, config: str | None, labels: dict[str, str], as_json: bool) -> int:
    """Chat with a team or an agent. Where no terminal is, each line of standard input is a turn."""
    with open_submission(config=config, as_json=as_json) as submission:
        from cantata import chat as chats  # noqa: PLC0415  # loads what `open_submission` has loaded while the workers start

        submission.check("hello", team=team, agent=agent)
        submission.warn_of_unserved_queues()
        door = chats.ClientBackend(submission.client, team=team, agent=agent, session=session, labels=labels, resume=RESUME)
        return 0 if chats.run(door, history=_lines_file(), as_json=as_json) else FAILED


def _lines_file() -> Path:
    """Where the lines that were typed are kept: in the folder of the stack, if there is one here, else where the user's state is."""
    home = Home().path
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "cantata"
    return (home if home.exists() else state) / "chat_lines"
