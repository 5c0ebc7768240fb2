"""The `submit` command: the table of its commands, and the message and exit status of errors."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from functools import partial
from io import TextIOWrapper
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from cantata.errors import CantataError, ConfigError, UnavailableError, UnknownRunError
from cantata.operation import json_streams
from cantata.operation.extras import check_extras, missing_modules
from cantata.surfaces.cli.views.progress import show_progress
from cantata.text.suggestions import nearest

FAILED, INVALID, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130
EXIT_STATUS_HELP = (
    "Exit status: 0 the run succeeded, 1 it did not, 2 wrong usage or configuration, 3 no service reachable, "
    "130 interrupted (the run goes on)."
)

COMMANDS = {
    "init": ("setup.init", "Make a small project: a configuration, a tool and a test."),
    "turn": ("submit", "Submit a user turn and show its answer; `submit TEXT` is short for it."),
    "chain": ("submit", "Submit a chain request and show its result."),
    "workflow": ("submit", "Run a workflow in Python and show its result."),
    "batch": ("batch", "Send each row of a file to an agent, team, chain or workflow, and collect the results."),
    "chat": ("chat", "Chat with a team or an agent."),
    "plan": ("check_plan", "Show the graph and the canvases of a chain or a turn, without running it."),
    "check": (
        "check_plan",
        "Report every fault and warning of a configuration or a chain request, or of a workflow in Python.",
    ),
    "runs": ("runs", "List, show, follow, export and cancel runs, read results, send signals, fork and retry."),
    "inbox": ("inbox", "List and answer the steps that wait for a person."),
    "logs": ("runs", "Show the log lines of a run, from workers and tools on all machines."),
    "schedules": ("schedules", "List, apply, create, pause and trigger schedules, which start runs by themselves."),
    "workers": ("fleet", "List workers, let one take no more work, and let it take work again."),
    "queues": ("fleet", "List queues with what waits in them, pause one, and resume it."),
    "audit": ("audit", "Show who cancelled, retried, signalled, answered, paused or changed something."),
    "parked": ("parked", "List what the sweep cannot handle and has parked, and have it tried again or drop it."),
    "models": ("models", "List models and their pauses, and end a pause."),
    "webhooks": ("webhooks", "List webhooks and alerts of a configuration, and send a test message."),
    "sessions": ("sessions", "List, show and clear conversations."),
    "memory": ("memory", "Read, store and delete memory."),
    "up": ("processes.stacks", "Start a stack in this folder and keep it running."),
    "status": ("processes.status", "Check this deployment, and show what runs."),
    "down": ("processes.stacks", "Stop the stack of this folder."),
    "gateway": ("processes.gateway", "Serve turns, chains, sessions and memory over HTTP and WebSockets."),
    "flower": ("processes.flower", "Serve Flower, the task monitor, with the run pages in it."),
    "worker": ("processes.worker", "Serve queues, here or on another machine, until stopped."),
    "doctor": ("setup.doctor", "Check this machine: Python, packages, Redis, ports, code and the keys of models."),
    "schema": ("setup.schema", "Print the JSON Schema of a configuration or a chain request."),
    "completion": ("setup.completion", "Print the completion script of a shell."),
}
"""Command → its module and description."""

EXTRAS = {"gateway": "gateway", "flower": "flower", "worker": "worker"}
"""Command → the extra with its dependencies; the others need none, unless they start a stack."""

LOGGING_COMMANDS = ("worker", "gateway", "flower")
"""Commands that serve until they are stopped: what they print is a log, of JSON lines if logs are JSON."""

RUN_COMMANDS = ("list", "show", "follow", "result", "cancel", "fork", "retry", "signal")
"""Commands of `submit runs` that users type without `runs`."""

OPTION_ALIASES = {"help": "--help", "version": "--version"}
"""Word that users type for an option → the option."""


class ExitStatusCommand(click.Command):
    """A command that returns its exit status and prints an error in one line."""

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
        except Exception as error:  # noqa: BLE001  # the edge: an unexpected error is one line too
            _print_unexpected(error)
            status = FAILED
        ctx.exit(status or 0)


class SubmitGroup(ExitStatusCommand, click.Group):
    """Loads a command when it is called: loading one takes up to 1 s, and `submit --help` should take 0.2 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in EXTRAS and missing_modules(EXTRAS[cmd_name]):
            return MissingExtraCommand(cmd_name, EXTRAS[cmd_name])
        with (
            nullcontext() if ctx.resilient_parsing else show_progress("loading")
        ):  # a shell completes a line that is being typed
            module = importlib.import_module(f"cantata.surfaces.cli.commands.{COMMANDS[cmd_name][0]}")
        return cast(click.Command, getattr(module, cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with `incomplete`, without loading them."""
        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, description) for name, (_, description) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; a first word that is neither a command nor an option is the text of a turn."""
        own = [word for option in self.get_params(ctx) for word in option.opts]
        if args and args[0] not in COMMANDS and args[0] not in own:
            suggestion = None if ctx.resilient_parsing else _suggestion(args[0])
            if suggestion:
                raise click.UsageError(
                    f"did you mean `submit {suggestion}`? To send {args[0]!r} as a turn: submit turn {args[0]!r}", ctx
                )
            args = ["turn", *args]
        return super().parse_args(ctx, args)


class MissingExtraCommand(ExitStatusCommand):
    """Replaces a command whose extra is not installed; calling it fails with the way to install it."""

    def __init__(self, name: str, extra: str) -> None:
        text = f"{COMMANDS[name][1]}\n\nNot installed here: pip install 'cantata[{extra}]'"
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(
            name,
            callback=partial(check_extras, extra, needed_by=f"submit {name}"),
            help=text,
            context_settings=settings,
        )


def _suggestion(word: str) -> str | None:
    """Return the command that a single word, in place of a turn's text, probably means: one like it, or `chain` for a file."""
    if any(map(str.isspace, word)):
        return None
    if word in RUN_COMMANDS:
        return f"runs {word}"
    if near := nearest(word.lower(), [*COMMANDS, *OPTION_ALIASES], cutoff=0.75):
        return OPTION_ALIASES.get(near, near)
    return f"chain {word}" if os.path.isfile(word) else None


def _status_of(error: CantataError) -> int:
    if isinstance(error, UnavailableError):
        return UNAVAILABLE
    return INVALID if isinstance(error, (ConfigError, UnknownRunError)) else FAILED


def _print_error(error: CantataError) -> None:
    if json_streams.is_installed():
        _log_error(str(error), error)
        return
    if _is_debugging():
        traceback.print_exception(error, file=sys.stderr)
    for line in str(error).splitlines():
        click.echo(f"submit: {line}", err=True)


def _print_unexpected(error: Exception) -> None:
    message = " ".join(f"{type(error).__name__}: {error}".split())
    if json_streams.is_installed():
        _log_error(f"unexpected error: {message}", error)
    elif _is_debugging():
        traceback.print_exception(error, file=sys.stderr)
    else:
        click.echo(f"submit: unexpected error: {message} (CANTATA_LOG_LEVEL=DEBUG shows where)", err=True)


def _log_error(message: str, error: Exception) -> None:
    trace = {"exception": "".join(traceback.format_exception(error))} if _is_debugging() else {}
    json_streams.report("process_failed", message, {"error": message, **trace}, level="error")


def _is_debugging() -> bool:
    return os.environ.get("CANTATA_LOG_LEVEL", "").upper() == "DEBUG"


def _version(ctx: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        click.echo(importlib.import_module("cantata").__version__)
        ctx.exit()


@click.command(cls=SubmitGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_STATUS_HELP)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def submit() -> None:
    """Run LLM agents, tools and chains of them, durably.

    \b
    submit "What does this error mean?"        a turn for the default team or agent
    submit chain request.yaml                  a chain request
    submit up                                  start a stack in this folder and keep it running
    """


def main() -> None:
    """Run the `submit` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # text of models may hold what this terminal cannot show
    if sys.argv[1:2] and sys.argv[1] in LOGGING_COMMANDS and not {"--help", "-h"} & {*sys.argv}:
        json_streams.install_if_wanted()
    with suppress(BrokenPipeError):
        submit(prog_name="submit")
