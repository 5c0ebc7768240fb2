"""Steps that run allowed commands, with named environment variables and without secrets in the output."""

from __future__ import annotations

import os
import subprocess

import structlog

from cantata.errors import StepError
from cantata.models.definitions import Command
from cantata.models.graph import Outcome
from cantata.models.values import Usage
from cantata.observability.logs.secrets import redact, secrets_in
from cantata.workers.code.config_folder import environment
from cantata.workers.runtime.step_context import StepContext

log = structlog.get_logger(__name__)

LOGGED_CHARS = 2000  # of what a command wrote to its standard error
QUOTED_CHARS = 500  # of that in an error


def proc_run(context: StepContext) -> Outcome:
    """Run an allowed command; an exit code other than 0 is an error."""
    name = context.text_param("command")
    arguments, stdin = _arguments(context)
    done = _run(context.definitions.commands[name], arguments, stdin, context.folder)
    secrets = secrets_in(os.environ)
    stdout, stderr = redact(done.stdout, secrets), redact(done.stderr, secrets)  # before anything is cut: half a secret is not recognized
    if stderr.strip():
        log.info("command_output", command=name, stderr=stderr.strip()[-LOGGED_CHARS:])
    if done.returncode != 0:
        quoted = (stderr or stdout).strip()[-QUOTED_CHARS:]
        raise StepError(f"command exited with {done.returncode}: {quoted}", code="proc_error", retryable=True)
    return Outcome(output={"exit_code": done.returncode, "stdout": stdout, "stderr": stderr}, usage=Usage(tool_calls=1))


def _arguments(context: StepContext) -> tuple[list[str], str]:
    """Return the arguments and the standard input from the node's input."""
    given = context.node_input
    unknown = sorted(set(given) - {"args", "stdin"})
    if unknown:
        raise StepError(f"a proc node takes 'args' (a list of texts) and 'stdin' (text), not {unknown[0]!r}", code="bad_arguments")
    args = given.get("args") or []
    if not isinstance(args, list) or not all(isinstance(arg, str | int | float) for arg in args):
        raise StepError(f"'args' must be a list of texts, not {args!r}", code="bad_arguments")
    return [str(arg) for arg in args], str(given.get("stdin") or "")


def _run(command: Command, arguments: list[str], stdin: str, folder: str | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*command.command, *arguments], input=stdin, capture_output=True, text=True, errors="replace", timeout=command.timeout_s,
            cwd=folder, env=environment(command.env), check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise StepError(f"command {command.command[0]!r} is not installed on this worker", code="proc_error") from error
    except subprocess.TimeoutExpired as error:
        raise StepError(f"command took longer than its {command.timeout_s:g} s and was stopped", code="timeout", retryable=True) from error
