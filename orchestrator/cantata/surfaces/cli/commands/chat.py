"""`submit chat`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cantata.operation.embedded import Home
from cantata.surfaces.cli.connect import connect_or_start
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import config_option, json_option, label_option

RESUME = "submit chat --session"


@click.command()
@click.option("--team", metavar="NAME", help="The team to answer; the configured default if absent.")
@click.option("--agent", metavar="NAME", help="The agent to answer.")
@click.option("--session", metavar="NAME", help="The session to continue; a new one if absent.")
@config_option
@label_option
@json_option
def chat(
    team: str | None, agent: str | None, session: str | None, config: str | None, labels: dict[str, str], as_json: bool
) -> int:
    """Chat with a team or an agent. Without a terminal, each line of standard input is a turn."""
    with connect_or_start(config=config, as_json=as_json) as connection:
        from cantata.flows.wire import TurnRequest
        from cantata.surfaces import chat as terminal_chat

        connection.checked_turn(TurnRequest(text="hello", team=team, agent=agent))
        connection.print_fleet_warnings()
        backend = terminal_chat.ChatBackend(
            connection.client, team=team, agent=agent, session=session, labels=labels, resume=RESUME
        )
        return 0 if terminal_chat.run(backend, history=_history_file(), as_json=as_json) else FAILED


def _history_file() -> Path:
    """Return the file of typed lines: in the folder of the stack, if there is one here, else in the user's state directory."""
    home = Home().path
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "cantata"
    return (home if home.exists() else state) / "chat_lines"
