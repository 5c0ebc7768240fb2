"""The table of commands, and what an error becomes: one sentence and an exit status."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from typing import Any, cast

import click

from cantata.errors import CantataError, ConfigError, UnavailableError, UnknownRunError
from cantata.extras import check_extras, missing_modules

FAILED, INVALID, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130
EXIT_STATUS_HELP = (
    "Exit status: 0 the run succeeded, 1 it did not, 2 wrong usage or configuration, 3 no service reachable, "
    "130 interrupted (the run goes on)."
)

COMMANDS = {
    "turn": ("submit", "Submit a user turn and show its answer; `submit TEXT` is short for it."),
    "chain": ("submit", "Submit a chain request and show its outcome."),
    "chat": ("chat", "Chat with a team or an agent."),
    "plan": ("check_plan", "Show the graph and the canvas of a chain or a turn, without running it."),
    "check": ("check_plan", "Report every fault of a configuration or a chain request."),
    "runs": ("runs", "List, show, follow, cancel runs; read their results; send them signals; fork and retry them."),
    "logs": ("logs", "Show what workers and tools logged for a run, on all machines."),
    "sessions": ("sessions", "List, show and clear conversations."),
    "memory": ("memory", "Read, keep and forget what is remembered."),
    "up": ("stacks", "Start a stack in this folder and keep it running."),
    "status": ("stacks", "Check this deployment, and show what runs."),
    "down": ("stacks", "Stop the stack of this folder."),
    "gateway": ("gateway", "Serve turns, chains, sessions and memory over HTTP and WebSockets."),
    "flower": ("flower", "Serve Flower, which shows the tasks, with the run pages in it."),
    "worker": ("worker", "Serve queues, here or on another machine, until told to stop."),
}
"""Command → the module it is in, and what it does."""

EXTRAS = {"gateway": "gateway", "flower": "flower", "worker": "worker"}
"""Command → the extra that brings what it needs; the others need none, unless they start a stack."""

OPTION_ALIASES = {"help": "--help", "version": "--version"}
"""Words that people try for options."""


class ExitStatusCommand(click.Command):
    """A command that returns its exit status, and whose errors are told in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            status = INTERRUPTED
        except CantataError as error:
            _print_error(error)
            status = _status_of(error)
        except Exception as error:  # noqa: BLE001  # the edge: what nobody foresaw is told in one line too
            _print_unexpected(error)
            status = FAILED
        ctx.exit(status or 0)


class SubmitGroup(ExitStatusCommand, click.Group):
    """Loads a command when it is called: they need up to a second, and `submit --help` has 0.2 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in EXTRAS and missing_modules(EXTRAS[cmd_name]):
            return MissingExtraCommand(cmd_name, EXTRAS[cmd_name])
        module = importlib.import_module(f"cantata.cli.commands.{COMMANDS[cmd_name][0]}")
        return cast(click.Command, getattr(module, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A first word that is no command, nor an option of ours, begins a turn."""
        own = [word for option in self.get_params(ctx) for word in option.opts]
        if args and args[0] not in COMMANDS and args[0] not in own:
            meant = _suggestion(args[0])
            if meant:
                raise click.UsageError(f"did you mean `submit {meant}`? To send {args[0]!r} as a turn: submit turn {args[0]!r}", ctx)
            args = ["turn", *args]
        return super().parse_args(ctx, args)


class MissingExtraCommand(ExitStatusCommand):
    """A command whose extra is not installed: it says so when it is called."""

    def __init__(self, name: str, extra: str) -> None:
        said = f"{COMMANDS[name][1]}\n\nNot installed here: pip install 'cantata[{extra}]'"
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(name, callback=partial(check_extras, extra, needed_by=f"submit {name}"), help=said, context_settings=settings)


def _suggestion(word: str) -> str | None:
    """What a single word, which may well be a turn, was more likely meant for: a command, or the file of a chain request."""
    if any(map(str.isspace, word)):
        return None
    near = difflib.get_close_matches(word.lower(), [*COMMANDS, *OPTION_ALIASES], n=1, cutoff=0.75)
    if near:
        return OPTION_ALIASES.get(near[0], near[0])
    return f"chain {word}" if os.path.isfile(word) else None


def _status_of(error: CantataError) -> int:
    if isinstance(error, UnavailableError):
        return UNAVAILABLE
    return INVALID if isinstance(error, (ConfigError, UnknownRunError)) else FAILED


def _print_error(error: CantataError) -> None:
    if _is_debugging():
        traceback.print_exception(error, file=sys.stderr)
    for line in str(error).splitlines():
        click.echo(f"submit: {line}", err=True)


def _print_unexpected(error: Exception) -> None:
    if _is_debugging():
        traceback.print_exception(error, file=sys.stderr)
    else:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        click.echo(f"submit: this should not happen: {said} (CANTATA_LOG_LEVEL=DEBUG shows where)", err=True)


def _is_debugging() -> bool:
    return os.environ.get("CANTATA_LOG_LEVEL", "").upper() == "DEBUG"


def _version(ctx: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        click.echo(importlib.import_module("cantata").__version__)
        ctx.exit()


@click.command(cls=SubmitGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_STATUS_HELP)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit.")
def submit() -> None:
    """Run LLM agents, tools and chains of them, durably.

    \b
    submit "What does this error mean?"        a turn for the default team or agent
    submit chain request.yaml                  a chain request
    submit up                                  keep a stack running in this folder
    """


def main() -> None:
    """The `submit` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # text of models may hold what this terminal cannot show
    with suppress(BrokenPipeError):
        submit(prog_name="submit")
